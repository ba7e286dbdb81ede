"""What cars spent on earlier days: a table too large to store, so each cell is computed when it is asked for.

Ten weeks of all cars of a few hundred expressways would be billions of rows. ``history`` gives any part of it as rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.workloads.generated import draw
from holdfast.workloads.linear_road.rules import Ints

DAYS = 69
"""Days 1 to 69 are in the table."""
MOST = 10_000
_SEED, _LANE = 690, 0


def expenditure(vid: Ints, day: Ints) -> Ints:
    """What these cars spent on these days; 0 for days that the table does not have."""
    drawn = np.floor(draw(vid * (DAYS + 1) + day, _SEED, _LANE) * MOST).astype(np.int64)
    return np.where((day >= 1) & (day <= DAYS), drawn, 0)


def history(vids: Sequence[int]) -> pa.Table:
    """The rows of these cars: ``vid``, ``day``, ``expenditure``."""
    vid, day = (each.ravel() for each in np.meshgrid(np.asarray(vids, np.int64), np.arange(1, DAYS + 1), indexing="ij"))
    return pa.table({"vid": vid, "day": day, "expenditure": expenditure(vid, day)})
