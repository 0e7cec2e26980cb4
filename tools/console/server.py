"""The web server: the page, its stream of changes (server-sent events), and the faults that it asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aiohttp import web

from tools.console.access import BEARER, COOKIE, Access, Asked, Refused
from tools.console.feed import Feed
from tools.console.harm import Harm
from tools.faults.words import FaultError
from tools.pages.markup import json_for_script

SHUTDOWN_S = 0.5
BODY_BYTES_MAX = 4096
STEP_S = 0.05
"""A page gets at most one message in this time."""
QUIET_S = 15.0
"""After this time without a message, a comment shows that the connection lives."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
JAVASCRIPT, CSS = "text/javascript", "text/css"
ASSETS: Mapping[str, tuple[str, str, str]] = {
    "/console.js": ("tools.console.page", "console.js", JAVASCRIPT),
    "/console.css": ("tools.console.page", "console.css", CSS),
    "/page.css": ("tools.pages", "page.css", CSS),
    "/echarts.js": ("tools.pages", "echarts/echarts.min.js", JAVASCRIPT),
}
"""Path -> (package, file, type)."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Console:
    """What the server shows. `harm`: None without `--allow-faults`. `about`: which cluster, for the page."""

    feed: Feed
    access: Access
    about: Mapping[str, Any]
    harm: Harm | None = None

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guarded], client_max_size=BODY_BYTES_MAX)
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/changes", self._changes),
                web.post("/faults", self._fault),
                *(web.get(path, self._asset) for path in ASSETS),
            ]
        )
        return application

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks who asks, and adds the headers that keep others out of the page."""
        try:
            token = request.query.get("token")
            if request.method == "GET" and request.path == "/" and token is not None:
                return self._logged_in(request, token)
            self.access.check(_asked(request))
            answer = await handler(request)
        except Refused as refused:
            answer = _error(refused.status, str(refused))
        except web.HTTPException as problem:
            answer = _error(problem.status, problem.reason)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    def _logged_in(self, request: web.Request, token: str) -> web.StreamResponse:
        """Puts the token into a cookie and out of the address."""
        if not self.access.knows(request.host):
            self.access.check(_asked(request))
        answer = web.Response(status=303, headers={"Location": "/", **HEADERS})
        if self.access.is_token(token):
            answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/")
        elif self.access.token is not None:
            raise Refused(401, "the token is wrong: open the address that `ottla console` printed")
        return answer

    async def _page(self, request: web.Request) -> web.Response:
        faults = None
        if self.harm is not None:
            faults = {"actions": self.harm.actions(), "zookeeper": self.harm.has_zookeeper()}
        text = files("tools.console.page").joinpath("console.html").read_text(encoding="utf-8")
        about = json_for_script({**self.about, "faults": faults})
        return web.Response(text=text.replace("{about}", about), content_type="text/html")

    async def _asset(self, request: web.Request) -> web.Response:
        package, name, kind = ASSETS[request.path]
        return web.Response(text=files(package).joinpath(name).read_text(encoding="utf-8"), content_type=kind)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        await answer.prepare(request)
        page = self.feed.open()
        try:
            while True:
                try:
                    async with asyncio.timeout(QUIET_S):
                        message = await page.next()
                except TimeoutError:
                    await answer.write(b": quiet\n\n")
                    continue
                await answer.write(f"data: {message}\n\n".encode())
                await asyncio.sleep(STEP_S)
        except ConnectionError:
            return answer
        finally:
            self.feed.close(page)

    async def _fault(self, request: web.Request) -> web.Response:
        """Carries out `{"fault": "kill broker 2"}`."""
        if self.harm is None:
            return _error(403, "faults are not allowed: start `ottla console --allow-faults`")
        if request.content_type != "application/json":
            return _error(415, "the body must be JSON")
        try:
            body = json.loads(await request.text())
        except (ValueError, RecursionError):
            return _error(400, "the body is not JSON")
        said = body.get("fault") if isinstance(body, dict) else None
        if not isinstance(said, str):
            return _error(400, 'expected a body such as {"fault": "kill broker 2"}')
        try:
            done = await self.harm.carry_out(said)
        except FaultError as problem:
            return _error(422, str(problem))
        return web.json_response({"done": done})


def _asked(request: web.Request) -> Asked:
    authorization = request.headers.get("Authorization", "")
    return Asked(
        host=request.headers.get("Host", ""),
        changes=request.method not in ("GET", "HEAD"),
        origin=request.headers.get("Origin"),
        cookie=request.cookies.get(COOKIE),
        bearer=authorization.removeprefix(BEARER) if authorization.startswith(BEARER) else None,
    )


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


async def serve(console: Console, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listens; returns what to clean up at the end, and the port. Raises OSError."""
    runner = web.AppRunner(console.application(), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])
