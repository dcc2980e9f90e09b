"""Bit patterns of states as torch tensors (without a copy) or float32 arrays: numpy has no bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

DTYPES = ("bfloat16", "float16", "float32")


def torch_of_bits(bits: npt.NDArray[Any], dtype: str) -> Any:
    """A tensor of ``dtype`` over the same memory as the uint16 or uint32 patterns."""
    import torch

    signed = bits.view(np.int32 if bits.dtype.itemsize == 4 else np.int16)
    return torch.from_numpy(signed).view(getattr(torch, dtype))


def bits_of_torch(tensor: Any) -> npt.NDArray[Any]:
    """The uint16 or uint32 patterns of a tensor on the CPU, over the same memory where it is contiguous."""
    import torch

    integers = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    signed: npt.NDArray[Any] = tensor.contiguous().view(integers).numpy()
    return signed.view(np.uint32 if signed.dtype.itemsize == 4 else np.uint16)


def float32_of_bits(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """The values, widened exactly."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16 if dtype == "float16" else np.float32).astype(np.float32)


def bits_of_float32(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Round to ``dtype``, to nearest and ties to even; NaN stays NaN."""
    if dtype == "float32":
        return values.astype(np.float32).view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    wide = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), (wide >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def pinned_bits(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any] | None:
    """Page-locked memory for bit patterns, None where torch has no CUDA device to copy them to."""
    import torch

    if not torch.cuda.is_available():
        return None
    return bits_of_torch(torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True))
