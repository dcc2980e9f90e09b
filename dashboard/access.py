"""Who may see the page and who may act on it: loopback looks freely, all else needs the token.

The token opens a session cookie (HttpOnly, SameSite=Strict) that holds a keyed hash, never the token itself; a
scraper sends ``Authorization: Bearer``. On loopback the Host header must be a loopback name, so that no other web
page can reach the dashboard by rebinding a name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.responses import PlainTextResponse, RedirectResponse

COOKIE = "eaglefeed_session"
OPEN_PATHS = ("/login", "/healthz")
_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # NiceGUI's Vue templates are compiled in the browser, which needs unsafe-eval; nothing comes from elsewhere.
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws: wss:; frame-ancestors 'none'; "
        b"form-action 'self'; base-uri 'self'",
    ),
)


class Access:
    """The rule, from what the command was told."""

    def __init__(self, host: str, token: str | None) -> None:
        self.is_public = not is_loopback(host)
        self._token = token or None

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())

    def session(self) -> str:
        """The cookie's value; it changes with the token, so changing the token ends all sessions."""
        return hmac.new((self._token or "").encode(), b"eaglefeed dashboard session", hashlib.sha256).hexdigest()

    def is_signed_in(self, headers: Any) -> bool:
        """Whether these headers (a mapping) carry the session or the token."""
        if self._token is None:
            return False
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.session().encode())


class AccessMiddleware:
    """ASGI, so that it stands before the web socket too."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Any, headers: dict[str, str]) -> Any:
        if not self._access.is_public:
            host = headers.get("host", "").rsplit("@", 1)[-1]
            name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
            if not is_loopback(name):
                return PlainTextResponse("this dashboard answers to loopback names only", 421)
            return None
        if scope["path"] in OPEN_PATHS or self._access.is_signed_in(headers):
            return None
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse("a token is needed: Authorization: Bearer …", 401, {"WWW-Authenticate": "Bearer"})


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _with_headers(send: Any) -> Any:
    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            extra = [pair for pair in _HEADERS if pair[0] not in present]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return send_with_headers
