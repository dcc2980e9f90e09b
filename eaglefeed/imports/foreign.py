"""A sample as another system dumped it, and what a reader of such dumps does.

Legend: ``T`` tokens, ``R`` rows of states (equal to T in a whole sample), ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eaglefeed.errors import CorruptData


class BadDump(CorruptData):
    """A file that is not a sample of its format.

    Args:
        kind: ``unreadable`` (damaged, truncated), ``shape`` (keys or shapes are not the format's), ``missing`` or
            ``mismatched-ids``.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True, eq=False)
class ForeignSample:
    """Tensors of one dump, as they lie in the file.

    Attributes:
        token_ids: int64 ``[T]``. loss_mask: int64 ``[T]``.
        aux: ``[R, K, H]``; final: ``[R', H]``: the rows are counted, not believed.
        final_state: ``pre_norm`` or ``post_norm``, as the format or the file says.
    """

    token_ids: Any
    loss_mask: Any
    aux: Any
    final: Any
    final_state: str


class Reader(Protocol):
    """Reads one format."""

    name: str

    def paths(self, folder: Path) -> Iterator[Path]:
        """The samples' files, in a fixed order."""
        ...

    def read(self, path: Path) -> ForeignSample:
        """Raises BadDump."""
        ...


def load_torch(path: Path) -> dict[str, Any]:
    """A ``torch.save`` file's dict, tensors only: a foreign file's pickle is never run.

    Raises:
        BadDump: the file is damaged, truncated, or holds something else than a dict.
    """
    import gzip
    import io

    import torch

    try:
        if path.suffix == ".gz":
            record = torch.load(io.BytesIO(gzip.decompress(path.read_bytes())), "cpu", weights_only=True)
        else:
            record = torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its zip reader and unpickler raise; the cause is kept
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BadDump("unreadable", f"{path.stat().st_size} bytes that torch cannot load: {reason[0][:160]}") from error
    if not isinstance(record, dict):
        raise BadDump("shape", f"holds a {type(record).__name__}, not a dict")
    return record


def tensor(record: dict[str, Any], name: str) -> Any:
    """A tensor of the record; raises BadDump when it is not there."""
    import torch

    value = record.get(name)
    if not isinstance(value, torch.Tensor):
        raise BadDump("shape", f"has no tensor {name!r}; it has {', '.join(sorted(map(str, record))) or 'nothing'}")
    return value


def row_of(value: Any, name: str, dimensions: int) -> Any:
    """``value`` without a leading batch axis of one; raises BadDump for another shape."""
    if value.ndim == dimensions + 1 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != dimensions or 0 in value.shape:
        raise BadDump("shape", f"{name} has the shape {list(value.shape)}")
    return value


def layers_of(aux: Any, width: int) -> Any:
    """``[R, K*H]`` as ``[R, K, H]``; raises BadDump when it is no multiple of the final state's width."""
    if aux.shape[-1] % width:
        raise BadDump("shape", f"captured layers are {aux.shape[-1]} wide beside a final state of {width}")
    return aux.reshape(aux.shape[0], aux.shape[-1] // width, width)
