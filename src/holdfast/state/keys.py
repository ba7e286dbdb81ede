"""The fixed hash of keys: the same number for the same key on every machine, in every run and every release.

A key hashes to 64 bits; its place on the ring that tasks share is the upper 32 of them, so whatever is sorted by the
hash is sorted by ring position too. The definition is in docs/state.md and golden values in the tests hold it still.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid

Hashes = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
POSITION = np.uint64(0xD6E8FEB86659FD93)
LENGTH = np.uint64(0xA0761D6478BD642F)
COLUMN = np.uint64(0xE7037ED1A0B428DB)
NULL = np.uint64(0x6E756C6C6E756C6C)
NAN_BITS = np.uint64(0x7FF8000000000000)
RING_SHIFT = np.uint64(32)
_BYTES_PER_WORD = 8
_SHORT = 6


def hash_keys(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> NDArray[np.uint32]:
    """Ring position of every row's key: the upper 32 bits of ``hash64``."""
    return ring(hash64([column_of(table, name) for name in columns], len(table)))


def in_one_form(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The same rows; in these key columns equal keys have equal bits: -0.0 is 0.0, and all NaNs are one, as in Spark.

    What compares keys by their bits, such as Arrow's group-by, then agrees with ``hash64`` and ``equal_keys``. Columns
    without floats are not looked at, nor are columns that are not there.
    """
    for name in names:
        place = table.schema.get_field_index(name)
        if place >= 0 and has_floats((field := table.schema.field(place)).type):
            chunks = [_in_one_form(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def ring(hashes: Hashes) -> NDArray[np.uint32]:
    """Ring positions of 64-bit hashes."""
    return (hashes >> RING_SHIFT).astype(np.uint32)


def hash64(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """64-bit hashes of keys made of these columns, in this order. Cost is linear in rows and bytes of text."""
    total: Hashes | None = None
    for column in columns:
        hashes = _hash_column(column)
        if total is None:
            total = hashes
        else:
            total *= COLUMN
            total += hashes
            mix(total)
    return np.zeros(rows, np.uint64) if total is None else total


def mix(words: Hashes) -> Hashes:
    """The splitmix64 finaliser, in place: a bijection of 64-bit words."""
    words += GOLDEN
    scratch = words >> np.uint64(30)
    words ^= scratch
    words *= MIX_1
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= MIX_2
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch
    return words


def column_of(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """One column as one contiguous array."""
    if name not in table.schema.names:
        raise Invalid(f"key column {name!r} is missing, found {', '.join(table.schema.names) or 'no columns'}")
    column = table.column(name)
    return contiguous(column) if isinstance(column, pa.ChunkedArray) else column


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A chunked column as one array, without a copy when it has one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def check_key_type(name: str, kind: pa.DataType) -> None:
    """A key column must be of a type with a hash: any scalar, or a struct of such."""
    if pa.types.is_struct(kind):
        for field in kind:
            check_key_type(f"{name}.{field.name}", field.type)
    elif pa.types.is_dictionary(kind):
        check_key_type(name, kind.value_type)
    elif pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        raise Invalid(f"key column {name!r} is {kind}, which has no hash: a key is a scalar or a struct of scalars")


def one_word(kind: pa.DataType) -> bool:
    """True where equal hashes of values that are not null mean equal values (the hash is then a bijection)."""
    return not (_is_text(kind) or _is_wide(kind) or pa.types.is_null(kind) or pa.types.is_struct(kind))


@lru_cache(maxsize=256)
def has_floats(kind: pa.DataType) -> bool:
    """Whether values of this type are floats, or have some within."""
    return bool(pa.types.is_floating(kind)) or any(has_floats(kind.field(n).type) for n in range(kind.num_fields))


def equal_keys(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    """Row by row, whether two key columns hold the same key: null equals null, NaN equals NaN, -0.0 equals 0.0."""
    if pa.types.is_null(left.type):
        return np.ones(len(left), np.bool_)
    absent_left, absent_right = _absent(left), _absent(right)
    if pa.types.is_struct(left.type):
        same = np.ones(len(left), np.bool_)
        for one, other in zip(left.flatten(), right.flatten(), strict=True):
            same &= equal_keys(one, other)
    elif pa.types.is_floating(left.type):
        same = _words(left) == _words(right)
    elif pa.types.is_interval(left.type):
        # Arrow has no comparison for these; their bytes are canonical.
        same = (_raw(left, "u8", 2) == _raw(right, "u8", 2)).reshape(-1, 2).all(axis=1)
    else:
        same = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    if absent_left is None and absent_right is None:
        return same
    none = np.zeros(len(left), np.bool_)
    gone_left = none if absent_left is None else absent_left
    gone_right = none if absent_right is None else absent_right
    both: NDArray[np.bool_] = (gone_left & gone_right) | (same & ~gone_left & ~gone_right)
    return both


def _hash_column(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _hash_column(pc.cast(column, kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return _hash_column(column.storage)
    if pa.types.is_null(kind):
        return np.full(len(column), NULL)
    if pa.types.is_struct(kind):
        hashes = hash64(column.flatten(), len(column))
    elif _is_text(kind):
        hashes = _hash_text(column)
    elif _is_wide(kind):
        hashes = _hash_wide(column)
    elif pa.types.is_nested(kind):
        raise Invalid(f"{kind} has no hash: a key is a scalar or a struct of scalars")
    else:
        hashes = mix(_words(column))
    absent = _absent(column)
    if absent is not None:
        hashes[absent] = NULL
    return hashes


def _in_one_form(column: pa.Array) -> pa.Array:
    kind, absent = column.type, _absent(column)
    if pa.types.is_floating(kind):
        values = _raw(column, f"f{kind.bit_width // 8}") + np.dtype(f"f{kind.bit_width // 8}").type(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, kind, mask=absent)
    if not pa.types.is_struct(kind) or not has_floats(kind):
        return column
    fields = [_in_one_form(each) for each in column.flatten()]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=None if absent is None else pa.array(absent))


def _absent(column: pa.Array) -> NDArray[np.bool_] | None:
    if column.null_count == 0:
        return None
    absent: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return absent


@lru_cache(maxsize=256)  # asked for every column of every run, however small
def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


@lru_cache(maxsize=256)
def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_interval(kind))


def _raw(column: pa.Array, dtype: Any, width: int = 1) -> NDArray[Any]:
    """The values buffer of a fixed-width column, whatever its nulls; ``width`` numbers for each value."""
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(len(column) * width, dtype)
    start = column.offset * width
    return np.frombuffer(buffer, dtype, count=start + len(column) * width)[start:]


def _words(column: pa.Array) -> Hashes:
    """One fresh 64-bit word a value: integers sign-extended, floats as canonical doubles, times as their number."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column, kind = pc.cast(column, pa.uint8()), pa.uint8()
    if pa.types.is_floating(kind):
        values = _raw(column, f"f{kind.bit_width // 8}").astype(np.float64) + 0.0
        words = values.view(np.uint64)
        words[np.isnan(values)] = NAN_BITS
        return words
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    wide = _raw(column, f"{sign}{kind.bit_width // 8}").astype(f"{sign}8")
    return wide.view(np.uint64)


def _hash_text(column: pa.Array) -> Hashes:
    """Sum of the mixed 8-byte words of each text, each with its position, then the length; linear in bytes."""
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = pc.cast(column, pa.large_binary())
    rows = len(column)
    if rows == 0:
        return np.zeros(0, np.uint64)
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32, count=column.offset + rows + 1)[column.offset :]
    first, last = int(offsets[0]), int(offsets[-1])
    starts = offsets.astype(np.int64) - first
    text = _room(last - first)
    if last > first:
        text[: last - first] = np.frombuffer(buffers[2], np.uint8, count=last)[first:]
    return _hash_spans(text, starts[:-1], np.diff(starts))


def _hash_wide(column: pa.Array) -> Hashes:
    if len(column) == 0:
        return np.zeros(0, np.uint64)
    if pa.types.is_decimal(column.type) and column.type.bit_width < 128:
        column = pc.cast(column, pa.decimal128(column.type.precision, column.type.scale))
    size = column.type.bit_width // 8
    values = _raw(column, np.uint8, size)
    text = _room(len(values))
    text[: len(values)] = values
    return _hash_spans(text, np.arange(len(column), dtype=np.int64) * size, np.full(len(column), size, np.int64))


def _room(size: int) -> NDArray[np.uint8]:
    """Zeroed bytes, with a spare word so that the last word of any span can be loaded."""
    return np.zeros(size + _BYTES_PER_WORD, np.uint8)


def _hash_spans(text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """Hash each span of ``text``, which comes from ``_room``."""
    # A view of the 8 bytes at every place; gathering from it beats putting words together from aligned ones.
    loads = np.ndarray((len(text) - _BYTES_PER_WORD + 1,), "<u8", text.data, strides=(1,))
    words_each = (lengths + (_BYTES_PER_WORD - 1)) >> 3
    longest = int(words_each.max())
    if longest <= _SHORT:
        # Short texts, the common case: one pass a word over the rows that have it.
        sums = np.zeros(len(starts), np.uint64)
        for number in range(longest):
            skipped = number * _BYTES_PER_WORD
            some = np.flatnonzero(lengths > skipped)
            where, left = (starts, lengths) if len(some) == len(starts) else (starts[some], lengths[some])
            mixed = _position_mixed(loads[where + skipped], left - skipped, np.array([number + 1], np.uint64))
            if len(some) == len(starts):
                sums += mixed
            else:
                sums[some] += mixed
    else:
        firsts = np.concatenate([[0], np.cumsum(words_each)])
        number = np.arange(firsts[-1]) - np.repeat(firsts[:-1], words_each)
        where = np.repeat(starts, words_each) + number * _BYTES_PER_WORD
        left = np.repeat(lengths, words_each) - number * _BYTES_PER_WORD
        mixed = _position_mixed(loads[where], left, (number + 1).astype(np.uint64))
        # Prefix sums wrap around as the sums do, so differences are exact; reduceat gets empty texts wrong.
        prefix = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        sums = prefix[firsts[1:]] - prefix[firsts[:-1]]
    sums += lengths.astype(np.uint64) * LENGTH
    return mix(sums)


def _position_mixed(words: Hashes, left: NDArray[np.int64], number: Hashes) -> Hashes:
    """Mixed words, with bytes beyond the end of their span zeroed."""
    spare = (_BYTES_PER_WORD - np.minimum(left, _BYTES_PER_WORD)).astype(np.uint64) * np.uint64(8)
    words = words & (np.uint64(0xFFFFFFFFFFFFFFFF) >> spare)
    words += number * POSITION
    return mix(words)
