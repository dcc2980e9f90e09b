"""The rows of one request, joined over its chunks, checked row by row, and written as its dump."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from eaglefeed.dump import SUFFIX, DumpHeader, DumpWriter
from workers.sglang_plugin import faults
from workers.sglang_plugin.capture import Rows
from workers.sglang_plugin.layers import captured_inputs
from workers.sglang_plugin.rid import is_ours, parse_rid
from workers.sglang_plugin.settings import plugin_settings
from workers.sglang_plugin.writer import budget, disk_reason, writers


class Refused(Exception):
    """The rows are not the request's; ``reason`` is one word, the message has the values."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class PendingDump:
    """One request's dump on its way to the spool.

    The scheduler's thread hands over pieces and asks ``is_done``; a writer thread checks and writes them in order.

    Attributes:
        receipt: what the client is told; set once ``is_done``.
    """

    def __init__(self, rid: str, token_ids: Any, num_rows: int) -> None:
        self.rid = rid
        self.path = plugin_settings().dump_folder / f"{rid}{SUFFIX}"
        self.receipt: dict[str, Any] = {}
        self._token_ids = np.asarray(token_ids, dtype=np.uint32)
        self._num_rows = num_rows
        self._writer: DumpWriter | None = None
        self._failure: tuple[str, str] | None = None
        self._done = threading.Event()
        # One thread for all takes of a request: what a retracted one left is gone before the next take comes.
        self._key = zlib.crc32(rid.encode())
        self.num_given = 0

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def num_missing(self) -> int:
        """Rows that were not handed over yet."""
        return self._num_rows - self.num_given

    def add(self, rows: Rows, start: int, end: int) -> None:
        """Hand over rows ``start:end`` of a forward; waits while the buffer is full."""
        num_bytes = (end - start) * rows.row_bytes
        budget().take(num_bytes)
        self.num_given += end - start
        writers().submit(self._key, lambda: self._write(rows, start, end, num_bytes))

    def finish(self) -> None:
        """All rows are handed over: complete the file, then the receipt."""
        writers().submit(self._key, self._complete)

    def discard(self) -> None:
        """The request was aborted or retracted: leave no file and no buffer behind."""
        writers().submit(self._key, self._remove)

    def _write(self, rows: Rows, start: int, end: int, num_bytes: int) -> None:
        try:
            if self._failure is None:
                done = self._writer.num_rows if self._writer else 0
                is_last = done + end - start == self._num_rows
                token_ids, positions, states = faults.alter(*rows.part(start, end), is_last)
                self._check(token_ids, positions, states, done)
                self._open(states).append(token_ids, positions, states)
        except BaseException as error:  # the request is answered with it
            self._fail(error)
        finally:
            budget().give(num_bytes)

    def _check(self, token_ids: Any, positions: Any, states: Any, done: int) -> None:
        """Raise Refused unless these rows are the request's next ones."""
        settings = plugin_settings()
        if faults.passes_the_plugin():
            return
        wanted = self._token_ids[done : done + len(token_ids)]
        if len(wanted) != len(token_ids) or not np.array_equal(token_ids, wanted):
            raise Refused("token-ids", f"rows {done} to {done + len(token_ids)} are not those of the request's tokens")
        if not np.array_equal(positions, np.arange(done, done + len(token_ids), dtype=np.uint32)):
            raise Refused("positions", f"positions {positions[0]} to {positions[-1]}, wanted from {done}")
        if states.shape[2] != settings.hidden_size:
            raise Refused("width", f"rows of width {states.shape[2]}, and the model's is {settings.hidden_size}")
        if states.itemsize != (4 if settings.dtype == "float32" else 2):
            raise Refused("dtype", f"states of {states.itemsize} bytes an element, and the run says {settings.dtype}")

    def _open(self, states: Any) -> DumpWriter:
        if self._writer is None:
            settings, name = plugin_settings(), parse_rid(self.rid)
            header = DumpHeader(
                run=settings.run,
                batch_id=name.batch_id,
                sample_id=name.sample_id,
                token_digest="",
                num_tokens=faults.num_rows(self._num_rows),
                num_slots=states.shape[1],
                hidden_size=states.shape[2],
                dtype=settings.dtype,
                layer_ids=settings.layer_ids,
                rows_crc32=0,
                engine=settings.engine,
            )
            self._writer = DumpWriter(self.path, header)
        return self._writer

    def _complete(self) -> None:
        try:
            if self._failure is None:
                self._finish_file()
        except BaseException as error:  # the request is answered with it
            self._fail(error)
        if self._failure is not None:
            reason, detail = self._failure
            self.receipt = {"error": reason, "detail": detail, "num_rows": self.num_given}
        self._done.set()

    def _finish_file(self) -> None:
        if self._writer is None or self._writer.num_rows != faults.num_rows(self._num_rows):
            written = self._writer.num_rows if self._writer else 0
            raise Refused("short-dump", f"{written} rows for {self._num_rows} tokens")
        header, settings = self._writer.finish(), plugin_settings()
        self.receipt = {
            "file": self.path.name,
            "num_rows": header.num_tokens,
            "num_slots": header.num_slots,
            "hidden_size": header.hidden_size,
            "dtype": header.dtype,
            "layer_ids": list(header.layer_ids),
            "captured_inputs": list(captured_inputs()),
            "token_digest": header.token_digest,
            "rows_crc32": header.rows_crc32,
            "engine": settings.engine,
            "plugin": settings.plugin,
            "replica": settings.replica,
            "process": os.getpid(),
            "buffer_bytes": budget().used_bytes,
            "buffer_peak_bytes": budget().peak_bytes,
        }

    def _fail(self, error: BaseException) -> None:
        reason = error.reason if isinstance(error, Refused) else "engine-error"
        if isinstance(error, OSError):
            reason = disk_reason(error)
        self._failure = (reason, f"{type(error).__name__}: {error}" if reason == "engine-error" else str(error))
        self._unlink()

    def _remove(self) -> None:
        self._failure = self._failure or ("aborted", "the request was aborted or retracted")
        self._unlink()
        self.path.unlink(missing_ok=True)
        self._done.set()

    def _unlink(self) -> None:
        if self._writer is not None:
            self._writer.discard()


def append_rows(original: Callable[..., int], processor: Any, **k: Any) -> int:
    """Hook: take a request's rows of this forward, chunk by chunk; states never enter SGLang's answer."""
    req, rows = k["req"], getattr(k["logits_output"], "eaglefeed", None)
    if rows is None or not is_ours(req.rid):
        return original(processor, **k)
    start = k["hidden_state_offset"]
    end = start + k["extend_input_len"]
    is_last, is_middle = k.get("store", True), req.inflight_middle_chunks > 0
    if req.finished() or req.is_retracted or not (is_last or is_middle):
        drop(req)
    elif is_last or faults.keeps_middle_chunks():
        dump = _dump_of(req, is_last, end - start)
        # A retracted request runs again with what it had generated behind its prompt; those rows are nobody's.
        upto = min(end, start + dump.num_missing) if req.retraction_count else end
        if upto > start:
            dump.add(rows, *faults.slice_of(start, upto, len(rows.states)))
        if is_last:
            dump.finish()
    return int(end)


def _dump_of(req: Any, is_last: bool, num_rows: int) -> PendingDump:
    dump = getattr(req, "eaglefeed", None)
    if dump is None:
        # What is missing is refused here; a test that lets the fault pass gets a dump of the rows there are.
        is_short = faults.passes_the_plugin() and is_last
        dump = PendingDump(req.rid, req.origin_input_ids, num_rows if is_short else len(req.origin_input_ids))
        req.eaglefeed = dump
    return dump


def drop(req: Any) -> None:
    """Forget what a request has gathered."""
    dump = getattr(req, "eaglefeed", None)
    if dump is not None:
        req.eaglefeed = None
        dump.discard()


def reset_for_retract(original: Callable[..., Any], req: Any) -> Any:
    """Hook: a retracted request runs again from its first token."""
    drop(req)
    return original(req)
