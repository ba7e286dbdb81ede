"""Generated columns as Spark SQL text over ``value``, the row's number; each mirrors a function of ``generated``.

Words are cut out of one string of bytes that holds them all, each with a space behind it: that is several times faster
than putting them together letter by letter.
"""

from __future__ import annotations

from holdfast.workloads import generated
from holdfast.workloads.generated import WORD_LENGTH


def draws(seed: int, lanes: int, vocabulary: int = 0) -> dict[str, str]:
    """Columns ``u0``, ``u1`` ...: numbers in [0, 1). And ``words``: the words of all ranks below ``vocabulary``."""
    columns = {f"u{lane}": drawn(seed, lane) for lane in range(lanes)}
    if vocabulary:
        listed = "".join(f"{word} " for word in generated.words(vocabulary).to_pylist())
        columns["words"] = f"X'{listed.encode().hex()}'"
    return columns


def drawn(seed: int, lane: int, of: str = "value") -> str:
    """A number in [0, 1) for each value of an integer column: equal values give equal numbers."""
    return (
        f"(cast(shiftrightunsigned(xxhash64(cast('{seed}' as bigint), {lane}L, {of}), 11) as double) * {2.0**-53!r}D)"
    )


def rank(lane: int, count: int, power: int) -> str:
    """A rank from 0 to count - 1, small ones more often."""
    product = " * ".join([f"u{lane}"] * power)
    return f"least(cast(floor({product} * {float(count)!r}D) as bigint), {count - 1}L)"


def word(number: str, length: int = WORD_LENGTH) -> str:
    """The word of a rank, as bytes; one byte longer it ends with a space."""
    return f"substring(words, cast({number} * {WORD_LENGTH + 1} + 1 as int), {length})"


def text(words: str) -> str:
    return f"cast({words} as string)"


def sentence(length: int, vocabulary: int, power: int) -> str:
    """A text of ``length`` words, each with a space behind it."""
    words = ", ".join(word(rank(lane, vocabulary, power), WORD_LENGTH + 1) for lane in range(length))
    return text(f"concat({words})")


def time(rate: int) -> str:
    """The event time of a row: ``rate`` rows a second since 1970."""
    return f"timestamp_micros(value * 1000000L div {rate}L)"
