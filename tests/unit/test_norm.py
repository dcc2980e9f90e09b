"""The final norm: the model's own, within the stated tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eaglefeed.bits import bits_of_float32, bits_of_torch, float32_of_bits
from eaglefeed.errors import CorruptData
from eaglefeed.norm import TOLERANCE_ULPS, FinalNorm, parse_norm


def ulps(first: torch.Tensor, second: torch.Tensor) -> int:
    """The greatest distance of two bfloat16 tensors in units of the last place."""

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        bits = tensor.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return int((ordered(first) - ordered(second)).abs().max())


@pytest.mark.parametrize(("kind", "module"), [("rms", LlamaRMSNorm), ("gemma_rms", GemmaRMSNorm)])
def test_it_is_transformers_norm(kind: str, module: Any) -> None:
    """Llama's and Gemma's norm of transformers, on states from 1e-3 to 1e3, within the tolerance; Gemma adds 1."""
    torch.manual_seed(0)
    theirs = module(576, eps=1e-5).to(torch.bfloat16)
    theirs.weight.data = (torch.rand(576) * 2 - (1 if kind == "gemma_rms" else 0)).to(torch.bfloat16)
    ours = FinalNorm(theirs.weight.detach().float().numpy(), 1e-5, kind)
    states = (torch.randn(500, 576) * torch.logspace(-3, 3, 500)[:, None]).to(torch.bfloat16)
    found = ours.apply(states)
    assert found.dtype == torch.bfloat16
    with torch.no_grad():
        assert ulps(found, theirs(states)) <= TOLERANCE_ULPS


def test_layer_norm_with_bias() -> None:
    """A LayerNorm subtracts the mean and adds its bias."""
    torch.manual_seed(1)
    theirs = torch.nn.LayerNorm(64, eps=1e-6)
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.bias)
    ours = FinalNorm(theirs.weight.detach().numpy(), 1e-6, "layer", theirs.bias.detach().numpy())
    states = torch.randn(30, 64)
    assert torch.allclose(ours.apply(states), theirs(states), atol=1e-5)


def test_numpy_and_torch_agree() -> None:
    """Without torch the same norm gives the same values to float32's precision."""
    norm = FinalNorm(np.linspace(0.5, 2, 32, dtype=np.float32), 1e-6)
    states = np.random.default_rng(0).standard_normal((9, 32)).astype(np.float32)
    assert np.allclose(norm.apply(states), norm.apply(torch.from_numpy(states)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_file_is_read(dtype: torch.dtype) -> None:
    """Weight in any dtype, epsilon and kind come from the file that the engine's plugin writes."""
    weight = torch.linspace(-1, 1, 16).to(dtype)
    data = safetensors.torch.save({"weight": weight}, {"eps": "1e-06", "kind": "gemma_rms", "lm_head_dtype": "bf16"})
    norm = parse_norm(data, "there")
    assert np.array_equal(norm.weight, weight.float().numpy())
    assert (norm.eps, norm.kind, norm.lm_head_dtype) == (1e-6, "gemma_rms", "bf16")


def test_a_damaged_file_is_named() -> None:
    """Cut, without an epsilon, or of an unknown kind: CorruptData with the file's name."""
    weight = {"weight": torch.ones(8)}
    for data in (
        b"",
        safetensors.torch.save(weight, {"eps": "1e-6", "kind": "rms"})[:-1],
        safetensors.torch.save(weight, {"kind": "rms"}),
        safetensors.torch.save(weight),
    ):
        with pytest.raises(CorruptData, match="run/final_norm"):
            parse_norm(data, "run/final_norm")
    with pytest.raises(CorruptData, match="kind 'batch'"):
        parse_norm(safetensors.torch.save(weight, {"eps": "1e-6", "kind": "batch"}), "there")


@given(st.integers(0, 2**16 - 1))
@settings(deadline=None)
def test_bfloat16_widens_exactly(bits: int) -> None:
    """Each of the 65,536 patterns widens to torch's value and rounds back to itself."""
    pattern = np.array([bits], np.uint16)
    wide = float32_of_bits(pattern, "bfloat16")
    tensor = torch.from_numpy(pattern.view(np.int16)).view(torch.bfloat16)
    assert np.array_equal(wide, tensor.float().numpy(), equal_nan=True)
    if not np.isnan(wide).any():
        assert bits_of_float32(wide, "bfloat16") == pattern


@given(st.floats(width=32, allow_nan=False))
@settings(deadline=None)
def test_rounding_is_torch_s(value: float) -> None:
    """float32 to bfloat16 and float16 rounds to nearest, ties to even, as torch does."""
    values = np.array([value], np.float32)
    for dtype in ("bfloat16", "float16"):
        with np.errstate(over="ignore"):
            ours = bits_of_float32(values, dtype)
        assert np.array_equal(ours, bits_of_torch(torch.from_numpy(values).to(getattr(torch, dtype))))
