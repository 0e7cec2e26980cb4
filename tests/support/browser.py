"""A headless Chromium that a test drives: through its DevTools protocol, or by a script in the page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
UNTIL = """new Promise((done) => {
  const look = () => { let found; try { found = (%s); } catch (problem) { found = null; } if (found) { watch.disconnect(); done(found); } };
  const watch = new MutationObserver(look);
  watch.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
  look();
})"""


def driven(page: str, script: str, directory: Path, width: int, theme: str) -> dict[str, Any]:
    """What `script`, put into the page's head, leaves as JSON in its title, in a browser of that width and theme."""
    assert BROWSER is not None
    file = directory / "driven.html"
    file.write_text(page.replace("<head>", f"<head>{script}", 1))
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", f"--window-size={width},900",
        f"--user-data-dir={directory / 'profile'}", f"--blink-settings=preferredColorScheme={('dark', 'light').index(theme)}",
        "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.search(r"<title>(\{.*?)</title>", dom)
    assert found is not None, "the page's script did not run to its end"
    return dict(json.loads(unescape(found[1])))


class Tab:
    """One page. `problems`: errors of its scripts, and what its policy forbade."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._number = 0
        self._loaded = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        # A headless browser has no window that could be the active one: since Chromium 156, no page of it has the focus.
        await self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._loaded.wait()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; for a promise, the result."""
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str) -> Any:
        """The first true value of the expression, which is evaluated again after each change of the page."""
        return await self.evaluate(UNTIL % condition)

    async def key(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
            )

    async def look_like(self, width: int, height: int, theme: str = "light") -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._waiting[self._number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": parameters}))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return dict(await answer)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            row = json.loads(message.data)
            if "id" in row:
                waiting = self._waiting.pop(row["id"])
                if not waiting.done():
                    waiting.set_result(row.get("result") or {"error": row.get("error")})
            elif row["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif row["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(row["params"]["exceptionDetails"]))
            elif row["method"] == "Log.entryAdded" and row["params"]["entry"]["level"] == "error":
                self.problems.append(str(row["params"]["entry"]))


@contextlib.asynccontextmanager
async def new_tab(directory: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, which ends with the block. `directory`: for its profile."""
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
        f"--user-data-dir={directory / 'profile'}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = b""
            while not line.startswith(b"DevTools listening on "):
                line = await process.stderr.readline()
                assert line, "the browser ended"
        port = line.decode().split("/devtools/")[0].rpartition(":")[2]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (target,) = (each for each in await answer.json() if each["type"] == "page")
            address = target["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=MESSAGE_BYTES_MAX) as socket:
                tab = Tab(socket)
                try:
                    yield tab
                finally:
                    await tab.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the command may be a script that has started the browser
        await process.wait()
