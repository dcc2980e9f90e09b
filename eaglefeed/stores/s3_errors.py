"""What boto3 raises, as eaglefeed's errors: what may pass, what won't, what is not there."""

from __future__ import annotations

from typing import Any

from eaglefeed import tls
from eaglefeed.errors import CorruptData, EaglefeedError, EnvironmentFault, StoreUnavailable

_RIGHTS = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"}
_RIGHTS |= {"InvalidToken", "ExpiredToken", "AccountProblem", "AllAccessDisabled", "401", "Unauthorized"}
_DIGEST = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_TLS_ADVICE = (
    "AWS_CA_BUNDLE names the PEM file of the authority that signed it, S3_ENDPOINT the host that it is made out to "
    "(http:// for a server without TLS)"
)
_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}


def translated(error: BaseException, where: str, bucket: str) -> Exception | None:
    """The error for ``where`` that the queue acts on; None for one that is no answer of the store."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from urllib3.exceptions import HTTPError

    if isinstance(error, (EaglefeedError, FileNotFoundError)):
        return None
    if isinstance(error, Boto3Error) and error.__context__ is not None:
        return translated(error.__context__, where, bucket)  # upload_file wraps the store's answer in its own words
    if isinstance(error, ClientError):
        return _answer(error, where, bucket)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return EnvironmentFault(
            f"{where}: boto3 finds no credentials ({error}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "a profile, or a role"
        )
    if isinstance(error, (BotoCoreError, HTTPError, ConnectionError, TimeoutError)):
        if reason := tls.refusal(error):
            return EnvironmentFault(f"{where}: the endpoint cannot be trusted: {reason}. {_TLS_ADVICE}")
        kind = _botocore_kind(error)
        return kind(f"{where}: {error}")
    return None


def error_code(error: EaglefeedError) -> str:
    """The store's own code of the answer behind ``error``, "" where there was none."""
    from boto3.exceptions import Boto3Error

    cause: Any = error.__cause__
    if isinstance(cause, Boto3Error):
        cause = cause.__context__
    response = getattr(cause, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) and "Error" in response else ""


def _botocore_kind(error: BaseException) -> type[EaglefeedError]:
    from botocore import exceptions

    wrong = (
        exceptions.ParamValidationError,
        exceptions.ProfileNotFound,
        exceptions.NoRegionError,
        exceptions.InvalidRegionError,
        exceptions.UnknownServiceError,
        exceptions.ConfigParseError,
    )
    return EnvironmentFault if isinstance(error, wrong) else StoreUnavailable


def _answer(error: Any, where: str, bucket: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket" or (code in _MISSING and error.operation_name == "HeadBucket"):
        return EnvironmentFault(f"{where}: there is no bucket {bucket!r}; create it, or correct store.url")
    if code in _MISSING:
        return FileNotFoundError(f"{where}: no such object")
    if code in _DIGEST:
        return CorruptData(f"{where}: the store received other bytes than were sent ({code})")
    if code in _RIGHTS or status in (401, 403):
        return EnvironmentFault(
            f"{where}: the store refuses these credentials ({code or status}: {_message(error)}); "
            "check the key, its secret and its rights on the bucket"
        )
    return StoreUnavailable(f"{where}: {code or status}: {_message(error)}")


def _message(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Message", "") or error)
