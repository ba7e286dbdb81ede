"""The key hash against a plain scalar one, its golden values, and what equal keys mean."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.state import hash_keys
from holdfast.state.keys import equal_keys, hash64, in_one_form

M = 2**64 - 1
QUICK = settings(deadline=None, derandomize=True, max_examples=30)


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & M
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M
    return x ^ (x >> 31)


def scalar_hash(value: Any) -> int:
    """The definition of docs/state.md, one value at a time."""
    if value is None:
        return 0x6E756C6C6E756C6C
    if isinstance(value, bool | int):
        return mix(int(value) & M)
    if isinstance(value, float):
        bits = 0x7FF8000000000000 if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
        return mix(bits)
    if isinstance(value, tuple):
        total = scalar_hash(value[0])
        for part in value[1:]:
            total = mix((total * 0xE7037ED1A0B428DB + scalar_hash(part)) & M)
        return total
    data = value.encode() if isinstance(value, str) else value
    total = 0
    for number in range(-(-len(data) // 8)):
        word = int.from_bytes(data[number * 8 : number * 8 + 8], "little")
        total += mix((word + (number + 1) * 0xD6E8FEB86659FD93) & M)
    return mix((total + len(data) * 0xA0761D6478BD642F) & M)


def hashes_of(values: list[Any], kind: pa.DataType) -> list[int]:
    return hash64([pa.array(values, kind)], len(values)).tolist()


GOLDEN: list[tuple[pa.DataType, Any, int]] = [
    (pa.int64(), 0, 0xE220A839),
    (pa.int64(), 1, 0x910A2DEC),
    (pa.int64(), -1, 0xE4D97177),
    (pa.uint64(), 2**64 - 1, 0xE4D97177),
    (pa.int32(), 42, 0xBDD73226),
    (pa.bool_(), True, 0x910A2DEC),
    (pa.float64(), 0.5, 0xF456984D),
    (pa.float32(), 0.5, 0xF456984D),
    (pa.float64(), float("nan"), 0xC72971D8),
    (pa.string(), "", 0xE220A839),
    (pa.string(), "holdfast", 0xC7F13752),
    (pa.large_string(), "holdfast", 0xC7F13752),
    (pa.binary(), b"\x00", 0x8813607E),
    (pa.string(), "a longer key, of several words", 0xEB8D25BD),
    (pa.date32(), dt.date(2026, 11, 15), 0x5B35A779),
    (pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 15, tzinfo=dt.UTC), 0x3736A3F8),
    (pa.decimal128(10, 2), Decimal("12.34"), 0xCC58AB50),
    (pa.int64(), None, 0x6E756C6C),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN, ids=lambda x: str(x)[:24])
def test_golden_ring_positions_hold_still(kind: pa.DataType, value: Any, expected: int) -> None:
    assert hash_keys(pa.table({"k": pa.array([value], kind)}), ["k"]).tolist() == [expected]


def test_golden_position_of_a_key_of_several_columns() -> None:
    table = pa.table({"a": [7, None], "b": ["seven", "x"], "c": [0.25, 1.0]})
    assert hash_keys(table, ["a", "b", "c"]).tolist() == [0x8947E7EE, 0x5AC512A7]
    assert hash_keys(table, ["a", "b"]).tolist() != hash_keys(table, ["b", "a"]).tolist()


@QUICK
@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))))
def test_integers_as_defined(values: list[int | None]) -> None:
    assert hashes_of(values, pa.int64()) == [scalar_hash(v) for v in values]


@QUICK
@given(st.lists(st.one_of(st.none(), st.floats())))
def test_floats_as_defined(values: list[float | None]) -> None:
    assert hashes_of(values, pa.float64()) == [scalar_hash(v) for v in values]


WIDTHS = {
    16: (0x8000, 0x7E00, 0x7E01),
    32: (1 << 31, 0x7FC00000, 0xFFC00001),
    64: (1 << 63, 0x7FF8 << 48, 0xFFF8 << 48),
}


@QUICK
@given(
    places=st.lists(st.sampled_from([0, 1, 2, 3, 4, None])), width=st.sampled_from([*WIDTHS]), gone=st.booleans(),
    cut=st.integers(0, 2),
)  # fmt: skip
def test_equal_keys_get_equal_bits(places: list[int | None], width: int, gone: bool, cut: int) -> None:
    """Plain, in several pieces, from the middle of an array, and in structs, of which some are null."""
    minus, nan, other = WIDTHS[width]
    bits = np.array([0 if p is None else (0, minus, nan, other, 0x3C00)[p] for p in places], f"u{width // 8}")
    values = pa.array(bits.view(f"f{width // 8}"), mask=np.array([p is None for p in places], np.bool_))
    inner = pa.StructArray.from_arrays([values, pa.array(range(len(places)))], names=["x", "n"])
    mask = pa.array([gone and p == 1 for p in places], pa.bool_())
    nested = pa.StructArray.from_arrays([inner], names=["s"], mask=mask)
    chunks = [values.slice(0, cut), values.slice(cut)]
    made = in_one_form(pa.table({"x": pa.chunked_array(chunks), "s": nested, "v": values}).slice(cut), ["x", "s"])
    assert made["v"].combine_chunks().equals(values.slice(cut)) or any(p in (2, 3) for p in places)
    expected = [None if p is None else (0, 0, nan, nan, 0x3C00)[p] for p in places[cut:]]
    assert bits_of(made["x"].combine_chunks()) == expected
    inside = made["s"].combine_chunks()
    assert inside.is_null().to_pylist() == mask.slice(cut).to_pylist()
    expected = [None if gone and p == 1 else each for p, each in zip(places[cut:], expected, strict=True)]
    assert bits_of(inside.flatten()[0].flatten()[0]) == expected
    assert equal_keys(inside, nested.slice(cut)).all()


def bits_of(values: pa.Array) -> list[int | None]:
    words = np.frombuffer(values.buffers()[1], f"u{values.type.bit_width // 8}")[values.offset :]
    there = values.is_valid().to_pylist()
    return [int(word) if valid else None for word, valid in zip(words, there, strict=False)]


def test_columns_without_floats_are_left_as_they_are() -> None:
    rows = pa.table({"k": [1, 2], "t": ["a", "b"], "x": [-0.0, 1.0]})
    assert in_one_form(rows, ["k", "t", "elsewhere"]) is rows


@QUICK
@given(st.lists(st.one_of(st.none(), st.text(max_size=40))))
def test_text_as_defined_in_every_encoding(values: list[str | None]) -> None:
    expected = [scalar_hash(v) for v in values]
    plain = pa.array(values, pa.string())
    forms = [plain, plain.cast(pa.large_string()), plain.cast(pa.binary()), plain.cast(pa.string_view())]
    forms.append(plain.dictionary_encode())
    forms.append(pa.concat_arrays([pa.array(["shift", None]), plain]).slice(2))
    for form in forms:
        assert hash64([form], len(form)).tolist() == expected


@QUICK
@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(-5, 5)), st.one_of(st.none(), st.text(max_size=12)))))
def test_several_columns_as_defined_and_a_struct_hashes_like_its_columns(rows: list[tuple[Any, Any]]) -> None:
    first, second = pa.array([r[0] for r in rows], pa.int64()), pa.array([r[1] for r in rows], pa.string())
    expected = [scalar_hash(r) for r in rows]
    assert hash64([first, second], len(rows)).tolist() == expected
    nested = pa.StructArray.from_arrays([first, second], names=["a", "b"])
    assert hash64([nested], len(rows)).tolist() == expected


def test_one_very_long_text_among_short_ones_costs_its_bytes() -> None:
    values = ["x" * 1_000_000, "", "y", None]
    assert hashes_of(values, pa.string()) == [scalar_hash(v) for v in values]


def test_wider_integers_of_the_same_value_share_their_place() -> None:
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hashes_of([0, 5, 100], kind) == hashes_of([0, 5, 100], pa.int64())


EVERY_TYPE: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), [None, None]),
    (pa.bool_(), [True, False, None]),
    *[(kind, [1, 0, 7, None]) for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.uint64())],
    (pa.float16(), [np.float16(1.5), np.float16(0), None]),
    (pa.float32(), [1.5, float("nan"), None]),
    (pa.decimal32(7, 2), [Decimal("1.50"), Decimal("-3.00"), None]),
    (pa.decimal128(20, 3), [Decimal("1.5"), Decimal(-1), None]),
    (pa.decimal256(50, 3), [Decimal("1.5"), Decimal(-1), None]),
    (pa.date32(), [dt.date(2020, 1, 1), None]),
    (pa.date64(), [dt.date(2020, 1, 1), None]),
    (pa.time32("s"), [dt.time(1, 2, 3), None]),
    (pa.time64("us"), [dt.time(1, 2, 3), None]),
    (pa.timestamp("ns"), [dt.datetime(2020, 1, 1), None]),
    (pa.duration("ms"), [dt.timedelta(seconds=3), None]),
    (pa.binary(), [b"", b"\x00", b"\x00\x00", None]),
    (pa.binary(3), [b"abc", b"abd", None]),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
    (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": "a"}, {"x": None, "y": "a"}, None]),
]


@pytest.mark.parametrize(("kind", "values"), EVERY_TYPE, ids=lambda x: str(x)[:30])
def test_every_type_hashes_and_tells_its_values_apart(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    hashes = hash64([column], len(column)).tolist()
    assert hash64([column.slice(0, 0)], 0).tolist() == []
    assert len(set(hashes)) == len({repr(v) for v in column.to_pylist()})
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    same = equal_keys(column, column)
    assert same.all()
    for i in range(len(column)):
        other = pa.concat_arrays([column.slice(i, 1)] * len(column))
        agree = equal_keys(column, other).tolist()
        assert agree == [h == hashes[i] for h in hashes]


def test_every_nan_and_both_zeros_are_one_key() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    left, right = pa.array([float("nan"), 0.0]), pa.array([odd, -0.0])
    assert hash64([left], 2).tolist() == hash64([right], 2).tolist()
    assert equal_keys(left, right).all()


def test_types_without_a_hash_are_refused() -> None:
    with pytest.raises(Invalid, match=r"list<.*has no hash: a key is a scalar or a struct of scalars"):
        hash_keys(pa.table({"k": [[1]]}), ["k"])
    with pytest.raises(Invalid, match="key column 'z' is missing, found k"):
        hash_keys(pa.table({"k": [1]}), ["z"])


def test_keys_spread_evenly() -> None:
    for column in (pa.array(range(100_000)), pa.array([f"user-{i}" for i in range(100_000)])):
        share = Counter((hash_keys(pa.table({"k": column}), ["k"]) >> 28).tolist())
        # 16 parts of 6,250 expected each; 5 standard deviations are 383.
        assert len(share) == 16
        assert max(abs(count - 6250) for count in share.values()) < 383
