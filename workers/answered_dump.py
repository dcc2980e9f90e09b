"""The dump that an answer speaks of: where it lies, if it is there, how many rows it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from config import names
from eaglefeed.dump import Dump, read_dump
from eaglefeed.errors import CorruptData, ProofFailed, SpoolFull
from workers.engine import Answer


def dump_path(answer: Answer, folder: Path) -> Path:
    """Where an answer's dump lies; raises ProofFailed, or SpoolFull, for an answer that has none."""
    receipt = answer.receipt
    if answer.error:
        raise ProofFailed("engine-refused", answer.error)
    if not receipt:
        raise ProofFailed("no-receipt", "the answer carries no receipt: eaglefeed's hooks are not active")
    if receipt.get("error") in ("spool-full", "spool-disk"):
        raise SpoolFull(f"the engine could not write a dump: {receipt.get('detail')}")
    if "error" in receipt:
        raise ProofFailed(str(receipt["error"]), str(receipt.get("detail", "")))
    if receipt.get("file") != f"{answer.rid}.dump":
        raise ProofFailed("other-request", f"the receipt names {receipt.get('file')!r}, asked for {answer.rid}")
    return dump_folder(receipt, folder) / f"{answer.rid}.dump"


def dump_folder(receipt: dict[str, Any], folder: Path) -> Path:
    """The run's folder, or that of the replica which the receipt names by its number; the number alone is taken."""
    replica = receipt.get("replica")
    if replica is None:
        return folder
    if type(replica) is not int or not 0 <= replica < names.MAX_REPLICAS:
        raise ProofFailed("other-request", f"the receipt names replica {replica!r}")
    return folder / names.replica_folder(replica)


def remove_dump(answer: Answer, folder: Path) -> None:
    """Remove an answer's dump, wherever an engine has put it."""
    name = f"{answer.rid}.dump"
    for path in (folder / name, *folder.glob(f"r[0-9]*/{name}")):
        path.unlink(missing_ok=True)


def num_rows_of(answer: Answer) -> int:
    """How many rows the engine gave for an answer that failed its proof, -1 for none."""
    return int(answer.receipt.get("num_rows", -1))


def read_answered(path: Path) -> Dump:
    """Raises ProofFailed for a dump that is not there or damaged."""
    try:
        return read_dump(path)
    except FileNotFoundError as error:
        raise ProofFailed("no-dump", f"{path} is not there") from error
    except CorruptData as error:
        raise ProofFailed("damaged-dump", str(error)) from error
