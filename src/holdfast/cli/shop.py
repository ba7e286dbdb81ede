"""The job of the demo: visits to a shop's pages, the most visited of them, and visits by country."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.workloads import Options, Workload, generated
from holdfast.workloads.expressions import rank
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import Pick, pick_text

PAGES, COUNTRIES = 20_000, 40


def pipeline(parallelism: int = 6) -> Pipeline:
    """Counts by page are ranked by two tasks, each for its own half, and then by one."""
    return Pipeline(
        op.source("visits", parallelism=4),
        op.step("count", op.aggregate("page", visits=op.count()), "visits", parallelism=parallelism),
        op.step("best", _ranking(), op.stream("count", partitioning="merge"), parallelism=2),
        op.step("top", _ranking(), "best", priority=2),
        op.step("countries", op.aggregate("country", visits=op.count()), "visits", parallelism=2, priority=1),
    )


def _ranking() -> op.Operator:
    return op.top_k(10, "visits", "page", rising=True)


def _expressions(options: Options) -> dict[str, str]:
    return {
        "page": f"concat('/page/', lpad({rank(0, PAGES, 3)}, 5, '0'))",
        "country": f"concat('country-', lpad({rank(1, COUNTRIES, 2)}, 2, '0'))",
    }


def _rows(rows: Rows, options: Options) -> pa.Table:
    def named(lane: int, count: int, power: int, text: str) -> pa.Array:
        ranks = generated.rank(generated.draw(rows, options.seed, lane), count, power)
        return pa.array([text.format(number) for number in range(count)]).take(pa.array(np.asarray(ranks)))

    return pa.table({"page": named(0, PAGES, 3, "/page/{:05d}"), "country": named(1, COUNTRIES, 2, "country-{:02d}")})


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return pick_text(file, "page", None), pick_text(file, "country", None)


SHOP = Workload(
    name="shop",
    pipeline=pipeline,
    columns=("page", "visits"),
    input=pa.schema({"page": pa.string(), "country": pa.string()}),
    lanes=2,
    vocabulary=0,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
