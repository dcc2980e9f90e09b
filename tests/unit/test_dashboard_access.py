"""Who may see the page: the middleware in front of everything, pages and web socket alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dashboard.access import Access, AccessMiddleware

TOKEN = "a-token-of-twenty-odd-letters"


async def _app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the page"})


def ask(access: Access, path: str, kind: str = "http", **headers: str) -> list[dict[str, Any]]:
    """What the server would send for one request."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "method": "GET", "path": path, "headers": raw, "query_string": b"", "root_path": ""}
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    asyncio.run(AccessMiddleware(_app, access)(scope, receive, send))
    return sent


@pytest.mark.parametrize("path", ["/", "/metrics", "/status.json", "/_nicegui/components", "/login/../metrics"])
def test_a_public_page_needs_the_token_everywhere(path: str) -> None:
    """Page, numbers and the framework's own files: 401 without it, 200 with it as bearer."""
    access = Access("0.0.0.0", TOKEN)
    assert ask(access, path)[0]["status"] == 401
    assert ask(access, path, authorization="Bearer wrong")[0]["status"] == 401
    assert ask(access, path, authorization=f"Bearer {TOKEN}")[0]["status"] == 200


def test_a_browser_is_sent_to_the_form() -> None:
    """Who asks for HTML gets the form, which is open, as is the health check."""
    access = Access("0.0.0.0", TOKEN)
    answer = ask(access, "/", accept="text/html,*/*")[0]
    assert (answer["status"], dict(answer["headers"])[b"location"]) == (303, b"/login")
    assert [ask(access, path)[0]["status"] for path in ("/login", "/healthz")] == [200, 200]


def test_the_web_socket_is_behind_it_too() -> None:
    """Closed without the session, accepted with it."""
    access = Access("0.0.0.0", TOKEN)
    assert ask(access, "/_nicegui_ws/socket.io/", "websocket")[0]["type"] == "websocket.close"
    cookie = f"eaglefeed_session={access.session()}"
    assert ask(access, "/_nicegui_ws/socket.io/", "websocket", cookie=cookie)[0]["type"] == "websocket.accept"


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "localhost"])
def test_loopback_looks_freely(host: str) -> None:
    """Under the names that only this machine has."""
    assert ask(Access("127.0.0.1", None), "/metrics", host=host)[0]["status"] == 200


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example:8080", "x@evil.example", "[evil]:1"])
def test_a_foreign_name_on_loopback_is_refused(host: str) -> None:
    """A page elsewhere cannot rebind its name to 127.0.0.1 and read along."""
    for kind in ("http", "websocket"):
        first = ask(Access("127.0.0.1", None), "/metrics", kind, host=host)[0]
        assert first.get("status") == 421 or first["type"] == "websocket.close"


def test_every_answer_forbids_frames_and_foreign_sources() -> None:
    """Refusals too."""
    for access, expected in ((Access("0.0.0.0", TOKEN), 401), (Access("127.0.0.1", None), 200)):
        answer = ask(access, "/metrics", host="127.0.0.1")[0]
        headers = dict(answer["headers"])
        assert answer["status"] == expected
        assert headers[b"x-frame-options"] == b"DENY"
        assert b"default-src 'self'" in headers[b"content-security-policy"]
