"""What a test run says if its cluster cannot start: one line, and no traceback."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

CONFTEST = """
from ottla import OttlaCluster, OttlaError

def start(self):
    raise OttlaError("install what is missing")

OttlaCluster.start = start
"""


def test_a_cluster_that_cannot_start_is_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_one(ottla_cluster): pass\ndef test_two(ottla_cluster): pass\n")
    result = pytester.runpytest_inprocess("-p", "ottla.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*the cluster does not start: install what is missing"])
    assert "Traceback" not in result.stdout.str()
    assert "def start" not in result.stdout.str()
