"""Secrets stay out of what is written: their values, from the environment, are replaced wherever a text goes to."""

from __future__ import annotations

import logging
import os
import re
from urllib.parse import unquote, urlsplit

_SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "REDIS_PASSWORD",
    "REDISCLI_AUTH",
    "EAGLEFEED_DASHBOARD_TOKEN",
    "HF_TOKEN",
)
_URL_VARIABLES = ("REDIS_URL", "RQ_REDIS_URL", "S3_ENDPOINT", "EAGLEFEED_STORE")
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+@")
_PASSWORD_IN_QUERY = re.compile(r"(?:^|&)password=([^&#\s]+)")
_SHORTEST = 4
"""A shorter value would be found in ordinary words; it is no secret either."""


def redact(text: str) -> str:
    """``text`` with every secret of this process's environment, and any password in a URL, as ``***``."""
    for secret in secrets():
        text = text.replace(secret, "***")
    return _PASSWORD_IN_URL.sub("***@", text)


def secrets() -> list[str]:
    """The values themselves, longest first; plain and as they stand in a URL."""
    found = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    for name in _URL_VARIABLES:
        found |= _passwords(os.environ.get(name, ""))
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def _passwords(url: str) -> set[str]:
    """Of ``//user:password@`` and of ``?password=``, which redis-py takes too; as it stands there, and decoded."""
    parts = urlsplit(url)
    written = {parts.password or "", *_PASSWORD_IN_QUERY.findall(parts.query)}
    return written | {unquote(password) for password in written}


class RedactingFilter(logging.Filter):
    """On a handler: no record leaves it with a secret in its message or its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        return True


def redact_logs() -> None:
    """Put the filter on every handler there is now."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for logger in loggers:
        for handler in logger.handlers:
            if not any(isinstance(each, RedactingFilter) for each in handler.filters):
                handler.addFilter(RedactingFilter())
