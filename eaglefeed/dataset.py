"""A run as a map-style data set: what a trainer imports.

::

    import eaglefeed

    run = eaglefeed.open("s3://bucket/prefix", run="kimi-eagle3", final="post_norm")
    sample = run[0]          # token_ids, loss_mask, aux [T, K*H], final [T, H], sample_id
    run.lengths              # tokens of every sample, no shard read
    short = run.select(max_tokens=2048)

Legend: ``N`` samples, ``T`` tokens of one, ``K`` captured layers, ``S`` slots: K and the final states,
``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed import ledger
from eaglefeed.bits import pinned_bits
from eaglefeed.errors import CorruptData, UsageError
from eaglefeed.fetch import ByteRange, RangeReader
from eaglefeed.form import SampleForm, form_for
from eaglefeed.identity import RunIdentity
from eaglefeed.index import RunIndex
from eaglefeed.manifest import StoredSample
from eaglefeed.norm import FinalNorm
from eaglefeed.records import LossMask, TokenIds, sample_id
from eaglefeed.selection import select_rows
from eaglefeed.shard import SampleStates, read_sample

IntArray = npt.NDArray[np.int64]
WHOLE = ledger.Gaps()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples of one run, by number; picklable, forkable, and safe to read from several threads.

    Attributes:
        identity: model, layer ids (``output_of_layer`` numbering) and everything that makes the run what it is.
        index: the run's index; ``rows`` are this data set's rows of it, in this data set's order.
        norm: the model's own final norm, None where the run has none.
        gaps: what the store lacks, empty unless ``allow_incomplete`` let it pass.
        is_closed: whether the run was closed as complete; an open one may still grow.
    """

    identity: RunIdentity
    index: RunIndex
    rows: IntArray
    form: SampleForm
    reader: RangeReader
    norm: FinalNorm | None = None
    threads: int = 1
    gaps: ledger.Gaps = WHOLE
    is_closed: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One sample: ``token_ids`` int64 ``[T]``, ``loss_mask`` int64 ``[T]``, ``aux``, ``final``, ``sample_id``.

        Torch tensors in the run's dtype; where torch is not installed numpy arrays, states widened to float32.

        Raises:
            CorruptData: a checksum disagrees, naming shard and sample; also after one fetch anew past the cache.
        """
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples: ranges that lie near each other are fetched as one. ``DataLoader`` calls this itself."""
        dtype = self.identity.dtype
        return [
            self.form.tensors(self.sample_id(number), states, dtype)
            for number, states in zip(numbers, self.states(numbers), strict=True)
        ]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)):
            yield self[number]

    def __repr__(self) -> str:
        tokens = int(self.lengths.sum())
        return (
            f"<eaglefeed run {self.identity.run!r} of {self.identity.model}: {len(self):,} samples, {tokens:,} tokens, "
            f"outputs of layers {list(self.layer_ids)} and the {self.form.final} final state>"
        )

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sample, int64 ``[N]``; no shard is read."""
        return self.index.num_tokens[self.rows]

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The captured layers; number k is the output of decoder layer k, counted from 0, and -1 the embeddings."""
        return self.identity.layer_ids

    @property
    def layer_convention(self) -> str:
        return self.identity.layer_convention

    @property
    def num_rejected(self) -> int:
        """Samples that the run's manifests record as refused: they are in no shard."""
        return self.index.num_rejected

    def sample_id(self, number: int) -> str:
        return self.index.sample_id(self.rows[number])

    def states(self, numbers: Sequence[int]) -> list[SampleStates]:
        """The samples as stored: token ids uint32, mask uint8, states' bit patterns ``[T, S, H]``. Needs no torch."""
        rows = [self._row(number) for number in numbers]
        ranges = [self._range(row) for row in rows]
        # One sample alone is decoded by all threads; several are decoded by as many threads as fetch them.
        threads = self.threads if len(rows) == 1 else 1
        return self.reader.read_each(
            ranges, lambda place, blob: self._decode(rows[place], ranges[place], blob, threads)
        )

    def tokens(self, numbers: Sequence[int]) -> list[tuple[TokenIds, LossMask]]:
        """Token ids and loss mask alone, a small range of each sample; the ids are checked against the sample's id.

        Raises:
            CorruptData: the ids do not hash to the sample's id, or the mask has another count of supervised tokens.
        """
        rows = [self._row(number) for number in numbers]
        places = [self._range(row) for row in rows]
        heads = [
            replace(place, end=place.start + 5 * int(self.index.num_tokens[row]), tag="tokens")
            for row, place in zip(rows, places, strict=True)
        ]
        return [self._tokens(*each) for each in zip(rows, places, self.reader.read(heads), strict=True)]

    def select(
        self,
        expression: str = "",
        *,
        min_tokens: int = 0,
        max_tokens: int | None = None,
        ids: Iterable[str] | None = None,
        where: Callable[[RunIndex], npt.NDArray[np.bool_]] | None = None,
    ) -> Dataset:
        """The samples that pass every condition given, in this data set's order.

        Args:
            expression: as ``--select`` (``eaglefeed/selection.py``).
            ids: sample ids; their order becomes the data set's.
            where: a predicate on the index's columns, giving bool ``[len(index)]``.

        Raises:
            UsageError: a condition that is not known, or an id that is not in the run.
        """
        rows = self.rows
        if expression:
            chosen = select_rows(self.index, expression)
            rows = chosen[np.isin(chosen, rows)]
        if ids is not None:
            try:
                chosen = self.index.rows_of(ids)
            except KeyError as error:
                raise UsageError(error.args[0]) from error
            rows = chosen[np.isin(chosen, rows)]
        tokens = self.index.num_tokens[rows]
        keep = (tokens >= min_tokens) & (tokens <= (max_tokens if max_tokens is not None else tokens.max(initial=0)))
        if where is not None:
            keep &= np.asarray(where(self.index), bool)[rows]
        return replace(self, rows=rows[keep])

    def with_form(self, aux: str = "flat", final: str = "pre_norm") -> Dataset:
        """The same samples in another form (``open``'s arguments); raises UsageError when the run cannot give it."""
        return replace(self, form=form_for(self.identity, aux, final, self.norm, self.form.pin_memory))

    def _row(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        return int(self.rows[number])

    def _range(self, row: int) -> ByteRange:
        index = self.index
        return ByteRange(
            index.shard_key(int(index.shards[row])),
            int(index.starts[row]),
            int(index.ends[row]),
            index.stored_checksums[row].decode(),
        )

    def _decode(self, row: int, place: ByteRange, blob: memoryview, threads: int = 1) -> SampleStates:
        stored = self.index.stored_sample(row)
        try:
            return read_sample(blob, stored, self.identity, self._buffer(stored), threads)
        except CorruptData as error:
            # What the cache kept may be damaged; what the store gives may not.
            if self.reader.forget(place):
                blob = self.reader.read([place])[0]
                return read_sample(blob, stored, self.identity, self._buffer(stored), threads)
            raise CorruptData(f"{self.reader.url}/{place.key}: {error}") from error

    def _tokens(self, row: int, place: ByteRange, blob: memoryview) -> tuple[TokenIds, LossMask]:
        stored = self.index.stored_sample(row)
        token_ids = np.frombuffer(blob[: 4 * stored.num_tokens], "<u4").astype(np.uint32)
        mask = np.frombuffer(blob[4 * stored.num_tokens :], np.uint8).copy()
        if sample_id(token_ids) != stored.id or np.count_nonzero(mask) != stored.num_supervised_tokens:
            raise CorruptData(f"{self.reader.url}/{place.key}: sample {stored.id}: its tokens are not those written")
        return token_ids, mask

    def _buffer(self, stored: StoredSample) -> npt.NDArray[Any] | None:
        """Page-locked memory to decode into, where it is wanted and there is a GPU to copy to."""
        shape = (stored.num_tokens, self.identity.num_slots, self.identity.hidden_size)
        return pinned_bits(shape, self.identity.dtype) if self.form.pin_memory else None
