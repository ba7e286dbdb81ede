"""Generated columns as Spark SQL text over ``value``, the row's number; each mirrors a function of ``generated``."""

from __future__ import annotations

from holdfast.workloads.generated import LETTERS, SCRAMBLE, WORD_LENGTH


def draws(seed: int, lanes: int) -> dict[str, str]:
    """Columns ``u0``, ``u1`` ...: numbers in [0, 1)."""
    hashed = "cast(shiftrightunsigned(xxhash64(cast('{}' as bigint), {}L, value), 11) as double) * {!r}D"
    return {f"u{lane}": hashed.format(seed, lane, 2.0**-53) for lane in range(lanes)}


def rank(lane: int, count: int, power: int) -> str:
    """A rank from 0 to count - 1, small ones more often."""
    product = " * ".join([f"u{lane}"] * power)
    return f"least(cast(floor({product} * {float(count)!r}D) as bigint), {count - 1}L)"


def word(number: str) -> str:
    """The word of a rank."""
    spread = f"cast({number} * {SCRAMBLE}L % {10**WORD_LENGTH}L as string)"
    return f"translate(lpad({spread}, {WORD_LENGTH}, '0'), '0123456789', '{LETTERS}')"


def sentence(length: int, vocabulary: int, power: int) -> str:
    """A text of ``length`` words."""
    words = ", ".join(word(rank(lane, vocabulary, power)) for lane in range(length))
    return f"concat_ws(' ', {words})"


def time(rate: int) -> str:
    """The event time of a row: ``rate`` rows a second since 1970."""
    return f"timestamp_micros(value * 1000000L div {rate}L)"
