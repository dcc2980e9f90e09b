"""CRC-32s joined without their bytes, and in S3's form."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglefeed.checksum import checksum, checksum_value, combine, from_base64, stream_checksum, to_base64
from eaglefeed.errors import CorruptData


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_combine_is_the_checksum_of_both_joined(first: bytes, second: bytes) -> None:
    """Two checksums and the second's length give the checksum of both strings joined."""
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


CRC = st.integers(0, 2**32 - 1)
LENGTH = st.integers(0, 2**44)


@given(CRC, CRC, CRC, LENGTH, LENGTH)
def test_the_order_of_joining_does_not_matter(a: int, b: int, c: int, b_bytes: int, c_bytes: int) -> None:
    """Three strings joined from the left or from the right have one checksum, at terabytes too."""
    from_left = combine(combine(a, b, b_bytes), c, c_bytes)
    assert from_left == combine(a, combine(b, c, c_bytes), b_bytes + c_bytes)


@given(st.binary(max_size=100))
def test_s3_form_returns(data: bytes) -> None:
    """The base64 form that S3 keeps is read back as the same checksum."""
    assert from_base64(to_base64(checksum(data))) == checksum(data)


def test_a_composite_checksum_is_none() -> None:
    """A checksum of parts is not the object's: it is not taken for one."""
    assert from_base64("tKKFHg==-3") == ""


@pytest.mark.parametrize("text", ["", "crc32:", "crc32:12", "md5:00000000", "crc32:0000000g"])
def test_what_is_no_checksum_is_refused(text: str) -> None:
    """Only crc32: and eight hex digits is a checksum."""
    with pytest.raises(CorruptData, match="not a checksum"):
        checksum_value(text)


def test_parts_give_the_checksum_of_the_whole() -> None:
    """The checksum of parts in order is that of all bytes."""
    assert stream_checksum([b"eagle", b"", b"feed"]) == checksum(b"eaglefeed")
