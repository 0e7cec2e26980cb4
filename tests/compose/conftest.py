"""One Compose project for all tests of containers. Each test leaves it healthy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.compose_project import BUILD_TIMEOUT_S, SERVICES, ComposeProject, find_compose
from tests.support.invariants import eventually
from tools.compose.project import FILE


@pytest.fixture(scope="session")
def project() -> Iterator[ComposeProject]:
    started = ComposeProject(find_compose(), (FILE,), SERVICES, "OTTLA_PROMETHEUS_PORT", "OTTLA_CONSOLE_PORT")
    try:
        started.compose("build", "zookeeper", "kafka1", "tools", timeout_s=BUILD_TIMEOUT_S)
        started.compose("up", "--detach", timeout_s=300)
        eventually(started.is_healthy, "all four containers healthy", timeout_s=120)
        yield started
    finally:
        print(started.compose("logs", "--no-color", "--tail", "40"))
        started.remove()
