"""The web application: the page, /metrics, /status.json, /healthz and the sign-in form."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from nicegui import app as nicegui_app
from nicegui import ui
from redis import Redis

from dashboard import metrics, page, sign_in, status
from dashboard.access import COOKIE, Access, AccessMiddleware
from dashboard.watch import Watch

FRESH_SECONDS = 1.0
WRONG_TOKEN_SECONDS = 1.0
MAX_FORM_BYTES = 4096


def create_app(redis: Redis, access: Access) -> Any:
    """The ASGI application. One a process: NiceGUI's pages are global."""
    watch = Watch(redis)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        polling = asyncio.create_task(watch.run())
        yield
        polling.cancel()

    web = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_routes(web, watch, access)
    page.add_page(watch, access)
    nicegui_app.config.endpoint_documentation = "none"
    ui.run_with(
        web,
        title="eaglefeed",
        language="en-US",
        dark=None,
        favicon=page.FAVICON,
        storage_secret=secrets.token_hex(16),
        tailwind=False,
        show_welcome_message=False,
    )
    return AccessMiddleware(web, access)


def add_routes(web: FastAPI, watch: Watch, access: Access) -> None:
    """Everything that is not the live page."""

    @web.get("/healthz")
    async def healthz() -> Response:
        view = await watch.poll(FRESH_SECONDS)
        return PlainTextResponse(view.error or "ok", 503 if view.error else 200)

    @web.get("/metrics")
    async def metrics_text(request: Request) -> Response:
        view = await watch.poll(FRESH_SECONDS)
        if view.error or view.numbers is None:
            return PlainTextResponse(view.error or "nothing has been read yet", 503)
        body, content_type = metrics.render(view.numbers, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    @web.get("/status.json")
    async def status_json() -> Response:
        view = await watch.poll(FRESH_SECONDS)
        if view.error or view.numbers is None:
            return JSONResponse({"error": view.error or "nothing has been read yet"}, 503)
        return JSONResponse(status.as_record(view.numbers))

    @web.get("/login")
    async def login_form() -> Response:
        return HTMLResponse(sign_in.form(access.has_token))

    @web.post("/login")
    async def login(request: Request) -> Response:
        body = (await request.body())[:MAX_FORM_BYTES]
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not access.is_token(given):
            await asyncio.sleep(WRONG_TOKEN_SECONDS)
            return HTMLResponse(sign_in.form(access.has_token, "That is not the token."), 403)
        response = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, access.session(), httponly=True, samesite="strict", secure=secure, path="/")
        return response
