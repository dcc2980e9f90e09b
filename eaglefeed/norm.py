"""The target model's final norm, from which a post-norm final state is computed out of the stored pre-norm one.

Tolerance. The norm is computed in float32 and rounded once to the state's dtype. An engine's fused kernel may round the
normalized state before it multiplies by the weight, or sum the squares in another order; so a recomputed value may
differ from the engine's in the last bits of bfloat16: ``TOLERANCE_ULPS`` units in the last place, tested against
transformers'.

Legend: ``T`` tokens, ``H`` hidden width.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.bits import float32_of_bits
from eaglefeed.errors import CorruptData
from eaglefeed.manifest import norm_key
from eaglefeed.stores import Store

TOLERANCE_ULPS = 2
KINDS = ("rms", "gemma_rms", "layer")


@dataclass(frozen=True, slots=True, eq=False)
class FinalNorm:
    """A final norm's parameters.

    Attributes:
        weight: float32 ``[H]``, widened exactly from the model's dtype.
        bias: float32 ``[H]``, of a LayerNorm that has one.
        kind: ``rms`` (x / rms(x) * w), ``gemma_rms`` (x / rms(x) * (1 + w)) or ``layer``.
        lm_head_dtype: what the model's head computes in, ``""`` where unknown.
    """

    weight: npt.NDArray[np.float32]
    eps: float
    kind: str = "rms"
    bias: npt.NDArray[np.float32] | None = None
    lm_head_dtype: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CorruptData(f"a final norm of kind {self.kind!r}; this eaglefeed knows {', '.join(KINDS)}")
        if self.weight.ndim != 1 or not np.isfinite(self.weight).all() or not 0 <= self.eps < 1:
            raise CorruptData(f"a final norm of shape {list(self.weight.shape)}, eps {self.eps}")

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """What the normalized state is multiplied by."""
        return self.weight + np.float32(1) if self.kind == "gemma_rms" else self.weight

    def apply(self, states: Any) -> Any:
        """Normalize ``[..., H]``, a torch tensor or a float32 array; the result has the input's dtype."""
        if isinstance(states, np.ndarray):
            return self._apply_numpy(states)
        return self._apply_torch(states)

    def _apply_torch(self, states: Any) -> Any:
        import torch

        wide = states.to(torch.float32)
        if self.kind == "layer":
            wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        scaled = scaled * torch.from_numpy(self.scale).to(states.device)
        if self.bias is not None:
            scaled = scaled + torch.from_numpy(self.bias).to(states.device)
        return scaled.to(states.dtype)

    def _apply_numpy(self, states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        wide = states.astype(np.float32)
        if self.kind == "layer":
            wide = wide - wide.mean(-1, keepdims=True)
        scaled = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + np.float32(self.eps)) * self.scale
        if self.bias is not None:
            scaled = scaled + self.bias
        rounded: npt.NDArray[Any] = scaled.astype(states.dtype)
        return rounded


def load_norm(store: Store, run: str) -> FinalNorm | None:
    """The run's own norm, None where the run has none stored.

    Raises:
        CorruptData: the file is not ``final_norm.safetensors`` as the engine's plugin writes it.
    """
    try:
        data = store.get(norm_key(run))
    except FileNotFoundError:
        return None
    return parse_norm(data, norm_key(run))


def parse_norm(data: bytes, where: str) -> FinalNorm:
    """Read ``{"weight": [H]}`` with metadata ``eps`` and ``kind``; numpy alone, bfloat16 included."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        metadata = header["__metadata__"]
        weight = _tensor(header, data, 8 + length, "weight")
        bias = _tensor(header, data, 8 + length, "bias") if "bias" in header else None
        eps, kind = float(metadata["eps"]), str(metadata["kind"])
        head_dtype = str(metadata.get("lm_head_dtype", ""))
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise CorruptData(f"{where} is not a final norm: {error}") from error
    return FinalNorm(weight, eps, kind, bias, head_dtype)


def _tensor(header: dict[str, Any], data: bytes, start: int, name: str) -> npt.NDArray[np.float32]:
    first, end = header[name]["data_offsets"]
    raw = np.frombuffer(data[start + first : start + end], np.uint8)
    bits = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[header[name]["dtype"]]
    return float32_of_bits(raw.view("<u4" if bits == "float32" else "<u2"), bits).reshape(header[name]["shape"])
