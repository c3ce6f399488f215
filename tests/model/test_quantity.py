"""Amounts of memory read as Kubernetes quantities, in whole bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import FormatError
from nvdp.model.quantity import Quantity, parse_quantity

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16Gi", 16 * GIB),
        ("500M", 500_000_000),
        ("17179869184", 16 * GIB),
        ("1.5Gi", GIB + GIB // 2),
        (".5Gi", GIB // 2),
        ("1.Gi", GIB),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1.5e3", 1500),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("+4Gi", 4 * GIB),
        ("0", 0),
    ],
)
def test_a_quantity_is_exact_in_bytes(text: str, size: int):
    assert parse_quantity(text).bytes == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("16GB", '"16GB" is not an amount of memory; write 16Gi (binary) or 16G (decimal)'),
        ("16gb", '"16gb" is not an amount of memory; write 16Gi (binary) or 16G (decimal)'),
        ("16 GiB", '"16 GiB" is not an amount of memory; write 16Gi'),
        ("4K", '"4K" is not an amount of memory; write 4Ki (binary) or 4k (decimal)'),
        ("500m", '"500m" is not an amount of memory; write whole bytes: m is a fraction of one; M or Mi is mega'),
        ("half", '"half" is not an amount of memory; write it like 16Gi, 500M or 17179869184'),
        ("", '"" is not an amount of memory; write it like 16Gi, 500M or 17179869184'),
        (".", '"." is not an amount of memory; write it like 16Gi, 500M or 17179869184'),
        ("1e3Gi", '"1e3Gi" is not an amount of memory; write it like 16Gi, 500M or 17179869184'),
        ("0.5", '"0.5" is not a whole number of bytes'),
        ("0.0001k", '"0.0001k" is not a whole number of bytes'),
        ("-1Gi", '"-1Gi" is negative; an amount of memory is meant, like 16Gi'),
        ("8Ei", '"8Ei" is too large; the most is 8Ei'),
    ],
)
def test_what_is_no_amount_of_memory_is_told_how_to_write_it(text: str, said: str):
    with pytest.raises(FormatError) as refused:
        parse_quantity(text)
    assert str(refused.value) == said


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_quantity_prints_as_what_reads_back(size: int):
    assert parse_quantity(str(Quantity(size))) == Quantity(size)


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_refused_in_one_line(text: str):
    refusal = ""
    try:
        assert parse_quantity(text).bytes >= 0
    except FormatError as error:
        refusal = str(error)
    assert not refusal or refusal.isprintable()


@pytest.mark.parametrize(("text", "mib"), [("16Gi", 16384), ("1Mi", 1), ("1.9Mi", 1), ("500M", 476)])
def test_mib_are_whole_and_rounded_down(text: str, mib: int):
    quantity = parse_quantity("1992294" if text == "1.9Mi" else text)
    assert quantity.mib == mib
