"""The one tree of errors; the queue acts on its branches.

::

    EaglefeedError
    ├── UsageError          the command line or a run file is wrong          exit 2
    ├── EnvironmentFault    the machine, a service or a right is missing     exit 3
    ├── IdentityMismatch    two runs' identities would be mixed              exit 2
    ├── RetryableError      the same job may succeed later (no attempt is charged)
    │   ├── EngineGone      the engine does not answer, or is not proved
    │   ├── StoreUnavailable
    │   └── SpoolFull
    ├── DumpsSpoilt         a batch's dumps are gone or damaged: it is extracted again
    └── RejectedSample      this sample can never be stored; its neighbours go on
        ├── ProofFailed     a dump is not what was asked for
        └── BadRow          a row of the input cannot become a sample
    CorruptData             bytes read back are not the bytes written (also a RetryableError's opposite: never retried)
"""

from __future__ import annotations


class EaglefeedError(Exception):
    """Something went wrong in eaglefeed."""

    exit_code = 1


class UsageError(EaglefeedError):
    """The command line or a run file is wrong; the message names the value and the way out."""

    exit_code = 2


class EnvironmentFault(EaglefeedError):
    """The machine lacks something: a service, a right, a package, room on a disk."""

    exit_code = 3


class IdentityMismatch(EaglefeedError):
    """Two different runs would be mixed; the message names the fields that differ."""

    exit_code = 2


class CorruptData(EaglefeedError):
    """Bytes read back are not the bytes written; the message names file, sample and tensor."""


class RetryableError(EaglefeedError):
    """The same work may succeed later; the sample is not to blame."""


class EngineGone(RetryableError):
    """The engine does not answer, or did not pass its proof."""


class StoreUnavailable(RetryableError):
    """The object store does not take or give the object now."""


class SpoolFull(RetryableError):
    """The spool has no room for another dump now."""


class DumpsSpoilt(EaglefeedError):
    """A batch's dumps are gone from the spool or damaged there: the batch goes back to extraction."""


class RejectedSample(EaglefeedError):
    """This sample cannot be stored.

    Args:
        reason: one word in kebab case, which counters are kept under (``short-dump``).
        detail: the sentence for a person, with the values.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ProofFailed(RejectedSample):
    """A dump is not the complete states of the request."""


class BadRow(RejectedSample):
    """A row of the input cannot become a sample."""
