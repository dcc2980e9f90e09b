"""What is wrong with Redis, as a sentence with the way out, where redis-py's own words leave a person alone."""

from __future__ import annotations

from config.environment import without_password
from eaglefeed import tls


def explained(error: BaseException, url: str) -> str:
    """``redis://host does not answer (…); start it, or …``, or what TLS needs. It holds no password."""
    shown = without_password(url)
    return (
        refused(error, shown)
        or f"{shown} does not answer ({error}); start it, or name another with --redis or REDIS_URL"
    )


def refused(error: BaseException, shown: str = "") -> str:
    """The sentence for a server that TLS does not let us trust; "" for any other error. Waiting would not mend it."""
    if isinstance(error.__context__, FileNotFoundError) and shown.startswith("rediss"):
        return f"{shown}: the file of ssl_ca_certs (or another ssl_… of the URL) is not there"
    reason = tls.refusal(error)
    if not reason:
        return ""
    if "speak" in reason:
        return f"{shown}: {reason}. Write redis:// for a server without TLS, or name its TLS port"
    return (
        f"{shown}: {reason}. Name the authority that signed it in the URL "
        "(rediss://HOST:PORT/0?ssl_ca_certs=/PATH/ca.pem), and the host that the certificate is made out to"
    )
