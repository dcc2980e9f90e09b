"""Why a TLS connection cannot be made before a person has mended something: what is wrong with the certificate."""

from __future__ import annotations

import re
from collections.abc import Iterator

_REFUSED = re.compile(r"certificate verify failed: (.*?)\.? \(_ssl")
_OTHER_NAME = re.compile(r"hostname '.*?' doesn't match .*")
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def refusal(error: BaseException) -> str:
    """In words why the other side is not trusted; "" for an error that may pass, or is no matter of TLS.

    Told by OpenSSL's own words: redis-py, boto3 and httpx each wrap its errors in their own.
    """
    text = " ".join(map(str, _chain(error)))
    if found := _REFUSED.search(text):
        return f"its certificate is refused: {found[1]}"
    if found := _OTHER_NAME.search(text):
        return f"its certificate is refused: {found[0]}"
    return "it does not speak TLS" if any(word in text for word in _PLAIN) else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
