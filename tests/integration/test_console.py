"""`ottla console` on a real cluster, in a real browser: it is killed by a button, seen dead, healed by a key, and seen again."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.conftest import ClusterFactory
from tests.support.browser import BROWSER, Tab, new_tab
from tests.support.cli import COMMAND
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        BROWSER is None,
        reason="no Chromium; the console was not opened (on Debian: apt-get install chromium-headless-shell)",
    ),
]
PHONE = 360
START_TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def running_console(cluster: LocalCluster, *options: str) -> AsyncIterator[str]:
    """The address that it prints. It must end by itself after SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "console", "--listen", "127.0.0.1:0", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield found[0]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_TIMEOUT_S):
            rest = await process.stdout.read()
            assert (await process.wait(), rest) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def state_is(broker: int, state: str) -> str:
    return f"document.querySelector('[data-broker=\"{broker}\"] .state')?.textContent === '{state}'"


def row_of(partition: str) -> str:
    """Leader and ISR in the table."""
    return f"[...document.querySelectorAll('#partitions tr')].find((row) => row.cells[0].textContent === '{partition}')?.cells"


async def press(tab: Tab, label: str) -> None:
    """By the keyboard, as a person without a mouse does."""
    await tab.evaluate(f"document.querySelector('[aria-label=\"{label}\"]').focus()")
    assert await tab.evaluate("document.activeElement.matches(':focus')")
    await tab.key("Enter", 13, "\r")


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3)


def test_a_broker_is_killed_and_healed_on_the_page(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(cluster.bootstrap_servers, assignment=[[2, 1, 3]])

    async def scene() -> None:
        directory = str(cluster.directory)
        async with running_console(cluster, "--dir", directory, "--allow-faults") as url, new_tab(tmp_path) as tab:
            await tab.look_like(PHONE, 740, "dark")
            await tab.open(url)
            for broker in (1, 2, 3):
                await tab.until(state_is(broker, "running"))
            await tab.until(f"{row_of(f'{topic}-0')}?.[1].textContent === '2'")
            assert await tab.evaluate("document.documentElement.dataset.theme") == "dark"

            await press(tab, "Kill broker 2")
            await tab.until(state_is(2, "down"))
            await tab.until("document.getElementById('news').textContent === 'Broker 2: down'")
            await tab.until(f"['1', '3'].includes({row_of(f'{topic}-0')}?.[1].textContent)")
            await tab.until(f"{row_of(f'{topic}-0')}?.[3].textContent.endsWith('without 2')")
            await tab.until("document.getElementById('timeline').textContent.includes('kill the process of broker 2')")
            await tab.until("document.getElementById('unhealed').textContent.includes('kill broker 2')")
            await tab.until("document.getElementById('health').className === 'banner bad'")
            assert cluster.pid(2) is None

            await press(tab, "Heal broker 2")
            await tab.until(state_is(2, "running"))
            await tab.until("document.getElementById('verdict').textContent === 'Healthy'")
            await tab.until("document.getElementById('unhealed').textContent === ''")

            await tab.until("document.querySelectorAll('.chart svg path').length > 5")
            assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert tab.problems == []

    asyncio.run(scene())


def test_any_cluster_by_its_address_and_without_faults(cluster: LocalCluster, tmp_path: Path) -> None:
    """A pause is seen although nobody knows the process."""

    async def scene() -> None:
        options = ("--bootstrap-server", cluster.bootstrap_servers)
        async with running_console(cluster, *options) as url, new_tab(tmp_path) as tab:
            await tab.open(url)
            await tab.until(state_is(3, "running"))
            assert await tab.evaluate("document.getElementById('faults').hidden")
            assert await tab.evaluate("document.querySelectorAll('#brokers button').length") == 0
            body, own = {"fault": "kill broker 3"}, {"Origin": url.rstrip("/")}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}faults", json=body, headers=own) as answer,
            ):
                assert answer.status == 403
            assert cluster.pid(3) is not None
            cluster.pause(3)
            try:
                await tab.until(state_is(3, "does not answer"))
            finally:
                cluster.resume(3)
            await tab.until(state_is(3, "running"))

    asyncio.run(scene())
