"""The codec gives back every bit of any array, and never a damaged one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from eaglefeed import codec
from eaglefeed.errors import CorruptData
from eaglefeed.fp8 import E4M3_VALUES, encode_e4m3, to_float32
from eaglefeed.tensor_header import unpack_header

SHAPES = hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=40)
SIXTEEN = hnp.arrays(np.uint16, SHAPES, elements=hnp.from_dtype(np.dtype(np.uint16)))
THIRTY_TWO = hnp.arrays(np.uint32, SHAPES, elements=hnp.from_dtype(np.dtype(np.uint32)))

SPECIAL = np.array(
    [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FFF, 0x0001, 0x8001, 0x007F, 0x3F80], np.uint16
)
"""bfloat16: zeros of both signs, infinities, NaNs with payloads, denormals, one."""


def states(num_tokens: int, slots: int = 4, width: int = 64, seed: int = 0) -> npt.NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((num_tokens, slots, width)) * np.exp(rng.normal(0, 1, (slots, width)))
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@given(SIXTEEN, st.sampled_from(["bfloat16", "float16"]), st.sampled_from(["lossless", "raw"]), st.integers(1, 3))
def test_any_16_bit_patterns_of_any_shape_return(array: Any, dtype: str, encoding: str, threads: int) -> None:
    """decode(encode(x)) is x, bit for bit, for any 16-bit patterns and any shape."""
    blob = codec.encode(array, dtype, encoding, threads)
    decoded = codec.decode(blob, threads=threads)
    assert decoded.dtype == array.dtype
    assert np.array_equal(decoded, array)


@given(THIRTY_TWO, st.sampled_from(["lossless", "raw"]))
def test_any_32_bit_patterns_of_any_shape_return(array: Any, encoding: str) -> None:
    """The same for float32's patterns."""
    assert np.array_equal(codec.decode(codec.encode(array, "float32", encoding)), array)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 255, 256, 257, 700])
def test_every_number_of_rows_around_a_chunk_returns(num_tokens: int) -> None:
    """Rows are neither lost nor added at the edges of chunks and of the sampled offsets."""
    array = states(num_tokens)
    assert np.array_equal(codec.decode(codec.encode(array, "bfloat16", threads=2), threads=2), array)


def test_special_values_return() -> None:
    """NaN payloads, infinities, denormals and minus zero are kept."""
    array = np.resize(SPECIAL, (300, 3, 7)).astype(np.uint16)
    assert np.array_equal(codec.decode(codec.encode(array, "bfloat16")), array)


def test_every_16_bit_pattern_returns() -> None:
    """All 65,536 patterns at once."""
    array = np.random.default_rng(1).permutation(np.arange(65536, dtype=np.uint16)).reshape(256, 4, 64)
    assert np.array_equal(codec.decode(codec.encode(array, "float16")), array)


def test_a_memory_map_that_cannot_be_written_is_encoded() -> None:
    """A dump's read-only rows are encoded as they lie."""
    array = states(40)
    array.flags.writeable = False
    assert np.array_equal(codec.decode(codec.encode(array, "bfloat16")), array)


def test_it_is_smaller_than_the_raw_bytes_by_the_exponent() -> None:
    """Normal values with a scale for each channel shrink by more than 1.45."""
    array = states(1024, width=256)
    assert array.nbytes / len(codec.encode(array, "bfloat16")) > 1.45


def test_what_does_not_shrink_costs_little() -> None:
    """Random bits are stored as they are: less than one per cent more."""
    array = np.random.default_rng(2).integers(0, 1 << 16, (512, 4, 64), np.uint16)
    assert len(codec.encode(array, "bfloat16")) < 1.01 * array.nbytes


def test_float32_that_was_bfloat16_loses_its_empty_half() -> None:
    """The two low planes of widened values take next to nothing."""
    array = states(512).astype(np.uint32) << 16
    assert array.nbytes / len(codec.encode(array, "float32")) > 2.5


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_never_returned(data: st.DataObject) -> None:
    """Any one bit of the encoded bytes flipped is an error, whichever bit it is."""
    blob = bytearray(codec.encode(states(300, width=16), "bfloat16"))
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData):
        codec.decode(bytes(blob))


def test_every_bit_of_a_small_tensor_is_guarded() -> None:
    """All bits one after the other, of a tensor small enough for that."""
    array = states(20, slots=2, width=8)
    blob = bytes(codec.encode(array, "bfloat16"))
    for bit in range(8 * len(blob)):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            codec.decode(bytes(damaged))


@pytest.mark.parametrize("encoding", ["lossless", "raw", "fp8_per_token"])
def test_a_cut_is_refused_at_every_byte(encoding: str) -> None:
    """No beginning of an encoded tensor is taken for a whole one."""
    blob = codec.encode(states(30, slots=2, width=8), "bfloat16", encoding)
    for length in range(len(blob)):
        with pytest.raises(CorruptData):
            codec.decode(blob[:length])


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Bytes that nobody encoded are an error of ours, whatever they are."""
    with pytest.raises(CorruptData):
        codec.decode(b"EFC\x01" + garbage)


def test_a_newer_version_is_named() -> None:
    """A tensor of another version is refused with its number."""
    blob = bytearray(codec.encode(states(3), "bfloat16"))
    blob[3] = 9
    with pytest.raises(CorruptData, match="version 9"):
        codec.decode(bytes(blob))


def test_it_decodes_into_given_memory() -> None:
    """Straight into an array, and not into one of another shape or type."""
    array = states(300)
    blob, out = codec.encode(array, "bfloat16"), np.zeros_like(array)
    assert codec.decode(blob, out) is out
    assert np.array_equal(out, array)
    for wrong in (np.zeros_like(array[:-1]), array.astype(np.uint32), np.zeros_like(array)[:, ::-1]):
        with pytest.raises(ValueError):
            codec.decode(blob, wrong)


def test_it_decodes_into_a_torch_tensor() -> None:
    """A bfloat16 tensor holds the same bits, new or given."""
    torch = pytest.importorskip("torch")
    array = states(300)
    blob, out = codec.encode(array, "bfloat16"), torch.zeros(array.shape, dtype=torch.bfloat16)
    assert codec.decode_torch(blob, out) is out
    for tensor in (out, codec.decode_torch(blob)):
        assert np.array_equal(tensor.view(torch.int16).numpy().view(np.uint16), array)
    with pytest.raises(ValueError, match="float16"):
        codec.decode_torch(blob, torch.zeros(array.shape, dtype=torch.float16))


@pytest.mark.parametrize("wrong", [states(4)[0], np.zeros((2, 0, 3), np.uint16), np.zeros((1, 1, 1), np.float32)])
def test_a_caller_s_mistake_is_a_value_error(wrong: Any) -> None:
    """Another rank, an empty side, or values in place of bits."""
    with pytest.raises(ValueError, match="states are"):
        codec.encode(wrong, "bfloat16")


def test_fp8_is_e4m3_of_torch() -> None:
    """Every rounding is the one torch makes, between -448 and 448."""
    torch = pytest.importorskip("torch")
    values = torch.cat([torch.randn(50_000) * scale for scale in (1e-3, 0.02, 1, 100)]).clamp(-448, 448)
    ours = encode_e4m3(values.numpy())
    assert np.array_equal(ours, values.to(torch.float8_e4m3fn).view(torch.uint8).numpy())
    assert np.array_equal(E4M3_VALUES[ours], values.to(torch.float8_e4m3fn).float().numpy())


def test_fp8_says_that_it_is_lossy_and_stays_close() -> None:
    """The header names it; no value is further off than half a step of its row's scale."""
    array = states(300)
    blob = codec.encode(array, "bfloat16", "fp8_per_token")
    assert unpack_header(memoryview(blob)).plan.encoding == "fp8_per_token"
    before, after = to_float32(array, "bfloat16"), to_float32(codec.decode(blob), "bfloat16")
    row_max = np.abs(before).max(axis=2, keepdims=True)
    assert (np.abs(before - after) <= np.maximum(np.abs(before) / 15, row_max / 448 / 256)).all()
    assert array.nbytes / len(blob) > 2


def test_fp8_keeps_what_no_scale_fits_lossless() -> None:
    """States that are not finite stay as they are, and the header says lossless."""
    array = states(20)
    array[3, 1, 5] = 0x7FC1
    blob = codec.encode(array, "bfloat16", "fp8_per_token")
    assert unpack_header(memoryview(blob)).plan.encoding == "lossless"
    assert np.array_equal(codec.decode(blob), array)
