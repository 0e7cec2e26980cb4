"""Only several refusals in a row, by every address of the host, prove a death (CTL-16)."""

from __future__ import annotations

import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.failure_detection.evidence import (
    REFUSALS_NEEDED,
    Answer,
    Evidence,
    Judgements,
    Liveness,
    answer_of,
)

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    ("errors", "answer"),
    [
        ([REFUSED], Answer.REFUSED),
        ([REFUSED, REFUSED], Answer.REFUSED),
        ([REFUSED, OSError(errno.EHOSTUNREACH, "No route to host")], Answer.UNCLEAR),
        ([], Answer.UNCLEAR),
        ([OSError(errno.EHOSTUNREACH, "No route to host")], Answer.UNCLEAR),
        ([OSError(errno.ENETUNREACH, "Network is unreachable")], Answer.UNCLEAR),
        ([TimeoutError(errno.ETIMEDOUT, "Connection timed out")], Answer.UNCLEAR),
        ([ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")], Answer.UNCLEAR),
        ([BrokenPipeError(errno.EPIPE, "Broken pipe")], Answer.UNCLEAR),
        ([ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort")], Answer.UNCLEAR),
        ([PermissionError(errno.EPERM, "Operation not permitted")], Answer.UNCLEAR),
        ([OSError(errno.EMFILE, "Too many open files")], Answer.UNCLEAR),
        ([OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")], Answer.UNCLEAR),
        ([socket.gaierror(socket.EAI_NONAME, "Name or service not known")], Answer.UNCLEAR),
    ],
)
def test_an_attempt_is_refused_only_if_all_addresses_refuse(errors: list[OSError], answer: Answer) -> None:
    assert answer_of(errors) is answer


def verdicts(answers: list[Answer]) -> list[Liveness]:
    evidence = Evidence()
    return [evidence.note(answer) for answer in answers]


def test_the_decision_table() -> None:
    r, a, u = Answer.REFUSED, Answer.ACCEPTED, Answer.UNCLEAR
    suspected, dead = Liveness.SUSPECTED, Liveness.DEAD
    assert verdicts([a]) == [Liveness.LIVES]
    assert verdicts([u]) == [Liveness.UNKNOWN]
    assert verdicts([r] * 4) == [suspected] * 3 + [dead]
    assert verdicts([r] * 8) == ([suspected] * 3 + [dead]) * 2, "a dead process is judged again"
    assert verdicts([r, r, r, a, r]) == [suspected] * 3 + [Liveness.LIVES, suspected], "it started again"
    assert verdicts([r, r, r, u, r]) == [suspected] * 3 + [Liveness.UNKNOWN, suspected], "silence interrupts the proof"


@given(st.lists(st.sampled_from(Answer), max_size=40))
def test_dead_only_after_refusals_in_a_row(answers: list[Answer]) -> None:
    for at, verdict in enumerate(verdicts(answers)):
        if verdict is Liveness.DEAD:
            assert answers[at + 1 - REFUSALS_NEEDED : at + 1] == [Answer.REFUSED] * REFUSALS_NEEDED


def test_a_session_is_judged_only_once() -> None:
    judgements = Judgements()
    assert not judgements.is_refuted(1, 0xA)
    judgements.note(1, 0xA)
    assert judgements.is_refuted(1, 0xA)
    assert not judgements.is_refuted(1, 0xB), "the next life has another session"
    assert not judgements.is_refuted(2, 0xA)
    judgements.note(1, 0xB)
    assert judgements.is_refuted(1, 0xB)


def test_two_registrations_in_a_session_show_a_wrong_judgement_of_another_process() -> None:
    judgements = Judgements()
    for session_id, broker_epoch, is_refuted in [
        (0xA, 10, False),
        (0xA, 10, False),
        (0xB, 20, False),
        (0xB, 30, True),
        (0xB, 30, True),
        (0xC, 40, False),
    ]:
        judgements.see(1, session_id, broker_epoch)
        assert judgements.is_refuted(1, session_id) is is_refuted
