"""Prometheus' text format, written in small pieces.

prometheus_client would build an object for each sample and the whole page at once. A broker with 6,000 partitions has 50,000 samples,
and while a thread computes, the loop gets the interpreter only every half millisecond. So a section of the page is a generator of
texts, and `paced` lets the loop run between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from protocol.time_histogram import QUANTILES, TimeHistogram, added, quantiles_s

log = logging.getLogger(__name__)

Section = Callable[[], Iterable[str]]
"""Gives a part of the page as texts. A text may be empty: a point at which the loop may run."""
Sample = tuple[str, float]
"""The labels as `labels` writes them, and the value."""

PIECE_S = 0.001
"""How long the page is computed without a pause."""
PAUSE_S = 0.001
LOOK_EVERY = 16
"""Texts between two looks at the clock. A text takes a few microseconds."""

LINES_IN_A_TEXT = 50
"""Lines that are joined to one text, if they have been made before."""

GAUGE = "gauge"
COUNTER = "counter"
SUMMARY = "summary"


def labels(**values: object) -> str:
    """`{topic="a",partition="0"}`, in this order."""
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One metric with all its samples."""
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for of, value in samples:
        yield f"{name}{of} {number(value)}\n"


class Families:
    """Several metrics with the same labels. Their samples are made together, and written metric by metric.

    Only texts are kept: tens of thousands of tuples would make the collector of garbage run, which holds the loop.
    """

    def __init__(self, metrics: Sequence[tuple[str, str, str]]) -> None:
        """`metrics`: name, kind and help of each."""
        self._metrics = metrics
        self._names = [name for name, _, _ in metrics]
        self._lines: list[list[str]] = [[] for _ in metrics]

    def add(self, of: str, values: Iterable[float]) -> None:
        """`of`: the labels as `labels` writes them. `values`: one for each metric."""
        for name, lines, value in zip(self._names, self._lines, values, strict=True):
            lines.append(f"{name}{of} {number(value)}\n")

    def written(self) -> Iterator[str]:
        for (name, kind, text), lines in zip(self._metrics, self._lines, strict=True):
            yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            for at in range(0, len(lines), LINES_IN_A_TEXT):
                yield "".join(lines[at : at + LINES_IN_A_TEXT])


def single(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    """A metric without labels."""
    return family(name, kind, text, (("", value),))


def times_ms(
    name: str, text: str, histograms: Iterable[tuple[dict[str, str], Sequence[TimeHistogram]]], now: float
) -> Iterator[str]:
    """A summary in milliseconds: the quantiles of the last half to whole minute, and sum and count since the start.

    `histograms`: labels, and the histograms that are one sample together.
    """
    yield f"# HELP {name} {text}\n# TYPE {name} {SUMMARY}\n"
    for of, together in histograms:
        found = quantiles_s(added([one.recent(now) for one in together]))
        for (quantile, _), seconds in zip(QUANTILES, found, strict=True):
            yield f"{name}{labels(**of, quantile=quantile)} {number(seconds * 1000)}\n"
        yield f"{name}_sum{labels(**of) if of else ''} {number(sum(one.total_s for one in together) * 1000)}\n"
        yield f"{name}_count{labels(**of) if of else ''} {sum(one.count for one in together)}\n"


def number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    return "NaN" if value != value else repr(value)


def paced(
    sections: Iterable[Section],
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """The page in pieces of about a millisecond, with a pause after each. An error ends only its section, and is logged."""
    piece: list[str] = []
    began, texts = monotonic(), 0
    for section in sections:
        try:
            for text in section():
                if text:
                    piece.append(text)
                texts += 1
                if texts % LOOK_EVERY == 0 and monotonic() - began >= PIECE_S:
                    yield "".join(piece).encode()
                    piece.clear()
                    sleep(PAUSE_S)
                    began = monotonic()
        except Exception:
            # The boundary of a section: a scrape that fails as a whole would hide all other metrics.
            log.exception("a part of the metrics page failed")
    yield "".join(piece).encode()
