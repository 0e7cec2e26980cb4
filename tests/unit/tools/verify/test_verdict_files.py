"""The verdict as JSON, JUnit XML, Markdown and a page."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.unit.tools.judge.tables import log_of, reports_of
from tests.unit.tools.judge.test_verdict import KILL, LATER, verdict_of
from tools.judge.judgement import Judged
from tools.judge.kinds import KINDS
from tools.judge.verdict import Client, conclude
from tools.verify.markdown import verdict_markdown
from tools.verify.page import junit_of, page_of


def test_the_files() -> None:
    verdict = verdict_of("acked 0 0 <b>; acked 0 1 b; consumed 0 1 b", log_of("-b"), KILL, LATER)
    found = verdict.to_json()
    assert (found["verdict"], found["exit_code"], found["headline"]) == ("found", 1, "1 lost")
    assert found["findings"][0]["evidence"][0]["id"] == "<b>"
    assert [fault["findings"] for fault in found["faults"]] == [{"lost": 1}, {}]
    suite = ElementTree.fromstring(junit_of(verdict)).find("testsuite")
    assert suite is not None
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["lost"]
    assert {case.get("name") for case in suite} <= {*KINDS, "complete"}
    page = page_of(verdict, "my <program>")
    assert "&lt;program&gt;" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page.split("<script>")[0].split("</style>")[1]
    assert "1 lost" in page
    summary = verdict_markdown(verdict, "my <program> | `x`")
    assert summary.startswith("## ❌ 1 lost\n\nmy &lt;program&gt; \\| \\`x\\`\n")
    assert "| kill leader of t-0 | broker 2 |" in summary
    assert "### your program: 1 lost: acknowledged, but not in the log\n\n- t-0@0 id '&lt;b&gt;'" in summary


def test_a_client_without_findings_and_without_faults_has_a_page() -> None:
    verdict = conclude(10, [Client("ottla's load", reports_of("acked 0 0 a"), (), Judged(), ())], (), ())
    assert "clean: 0 findings" in page_of(verdict, "")
