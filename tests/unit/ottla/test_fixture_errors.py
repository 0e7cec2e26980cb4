"""What a test run says if its cluster cannot start: one line, and no traceback."""

from __future__ import annotations

import pytest

from ottla import OttlaCluster, OttlaError

pytest_plugins = ("pytester",)


def refuse(_: OttlaCluster) -> OttlaCluster:
    raise OttlaError("install what is missing")


def test_a_cluster_that_cannot_start_is_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(OttlaCluster, "start", refuse)
    pytester.makepyfile("def test_one(ottla_cluster): pass\ndef test_two(ottla_cluster): pass\n")
    result = pytester.runpytest_inprocess("-p", "ottla.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*the cluster does not start: install what is missing"])
    assert "Traceback" not in result.stdout.str()
    assert "def refuse" not in result.stdout.str()
