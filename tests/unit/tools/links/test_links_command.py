"""What `ottla links` tells clients, and what it says: nobody who stops reading it stops the links."""

from __future__ import annotations

import threading

import click
import pytest

from tools.links.links_command import LINES_MAX, Said, advertised_host


@pytest.mark.parametrize(
    ("listen", "advertise", "host"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, "localhost"),
        ("::", None, "localhost"),
        ("::1", None, "::1"),
        ("0.0.0.0", "kafka.example", "kafka.example"),
        ("::", "[fe80::1]", "fe80::1"),
        ("::", "fe80::1", "fe80::1"),
    ],
)
def test_the_host_that_clients_are_told(listen: str, advertise: str | None, host: str) -> None:
    assert advertised_host(listen, advertise) == host


@pytest.mark.parametrize("advertise", ["", "[]", "a b", "a,b", "http://a", "[[::1]]", "a\n"])
def test_what_is_no_host_is_refused(advertise: str) -> None:
    with pytest.raises(click.BadParameter):
        advertised_host("127.0.0.1", advertise)


def test_lines_are_said_in_order() -> None:
    printed: list[str] = []
    said = Said(printed.append)
    for number in range(3):
        said.line(f"{number}")
    said.end()
    assert printed == ["0", "1", "2"]


def test_a_pipe_that_is_closed_stops_nothing() -> None:
    printed: list[str] = []

    def print_line(text: str) -> None:
        printed.append(text)
        raise BrokenPipeError

    said = Said(print_line)
    said.line("a")
    said.line("b")
    said.end()
    assert printed == ["a", "b"]


def test_a_terminal_that_stands_still_stops_nothing() -> None:
    goes_on = threading.Event()
    printed: list[str] = []

    def print_line(text: str) -> None:
        assert goes_on.wait(10)
        printed.append(text)

    said = Said(print_line)
    for number in range(2 * LINES_MAX):
        said.line(f"{number}")
    goes_on.set()
    said.end()
    assert printed[0] == "0"
    assert LINES_MAX <= len(printed) <= LINES_MAX + 1
