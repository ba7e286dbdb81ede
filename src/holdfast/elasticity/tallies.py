"""How a task's load lies over its keys: rows counted by equal parts of its range, and what ``split`` makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from holdfast.elasticity.routes import Sample
from holdfast.state import KeyRange

PARTS = 64
"""A hot key is set apart to within 1/64 of its task's range; the next split goes on from there."""


def tally(part: KeyRange, hashes: NDArray[np.uint32], parts: int = PARTS) -> NDArray[np.int64]:
    """How many of these ring positions fall into each of so many equal parts of a range; others are left out."""
    places = hashes[part.contains(hashes)].astype(np.uint64) - np.uint64(part.lo)
    return np.bincount((places * np.uint64(parts) // np.uint64(part.width)).astype(np.int64), minlength=parts)


def sample_of(part: KeyRange, counts: Sequence[float] | NDArray[np.float64]) -> Sample:
    """A tally as a sample of keys: one in the middle of each part, with its load, so that cuts fall between parts."""
    edges = [part.lo - (-part.width * i // len(counts)) for i in range(len(counts) + 1)]
    middles = [min((a + b) // 2, part.hi - 1) for a, b in pairwise(edges)]
    return np.array(middles, np.uint32), np.asarray(counts, np.float64)
