"""The verdict, and the report card of recipes, in Markdown: for the summary of a CI, or a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.judge.lines import SHOWN, cost_words, evidence
from tools.judge.verdict import CLEAN, FOUND, Judgement, Verdict
from tools.pages.markdown import plain, table
from tools.pages.units import count, moment
from tools.verify.report_card import FAILED, NOT_WHOLE, PASSED, Row

SIGNS = {CLEAN: "✅", FOUND: "❌"}
UNKNOWN = "⚠️"


def verdict_markdown(verdict: Verdict, command: str) -> str:
    """`command`: the program, as it is typed."""
    faults = [
        (moment(each.fault.at), each.fault, each.fault.who, each.fault.error or cost_words(each))
        for each in verdict.faults
    ]
    return "\n".join(
        [
            f"## {SIGNS.get(verdict.exit_code, UNKNOWN)} {plain(verdict.headline)}\n",
            f"{plain(command or 'no program: only the cluster')}\n",
            *_items([*verdict.incomplete, *verdict.notes]),
            table(("client", "produced", "acked", "consumed", "committed"), [
                (client.name, *(count(client.counts()[event]) for event in ("produced", "acked", "consumed", "committed")))
                for client in verdict.clients
            ]),
            *([table(("at", "fault", "hit", "what it cost"), faults)] if faults else []),
            *(_found(each, "###") for each in verdict.judgements if each.is_failure),
        ]
    )  # fmt: skip


def card_markdown(rows: Sequence[Row], command: str) -> str:
    """`command`: the program, as it is typed."""
    results = [row.result for row in rows]
    passed = f"{results.count(PASSED)} of {len(rows)} recipes passed"
    sign = (
        SIGNS[FOUND]
        if FAILED in results
        else UNKNOWN
        if NOT_WHOLE in results or PASSED not in results
        else SIGNS[CLEAN]
    )
    return "\n".join(
        [
            f"## {sign} {passed}\n",
            f"{plain(command)}\n",
            table(
                ("recipe", "hits", "no writes", "no reads", "result"),
                [(row.name, *row.cells, row.words) for row in rows],
            ),
            *(
                f"### {plain(row.name)}\n\n"
                + "\n".join(_found(each, "####") for each in row.verdict.judgements if each.is_failure)
                for row in rows
                if row.verdict is not None and row.result == FAILED
            ),
        ]
    )


def _items(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "".join(f"- {plain(line)}\n" for line in lines)


def _found(judgement: Judgement, heading: str) -> str:
    more = [f"... and {count(judgement.count - SHOWN)} more"] if judgement.count > SHOWN else []
    shown = [*map(evidence, judgement.findings[:SHOWN]), *more]
    title = f"{judgement.client}: {count(judgement.count)} {judgement.kind}: {judgement.words}"
    return f"{heading} {plain(title)}\n\n" + "".join(_items(shown))
