"""Nodes of one local process, which faults, looks and a test's own thread change at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from holdfast.runtime.spark.nodes import LogicalNodes
from waiting import DEADLINE


def test_a_node_that_joins_while_another_is_killed_is_there(tmp_path: Path) -> None:
    nodes = LogicalNodes(3, 2, tmp_path)
    nodes.kill(["node-0"])
    joining = threading.Thread(target=nodes.join, args=("node-0",))

    class Slow(set[str]):
        """Whoever takes nodes out of it is overtaken meanwhile, if that can be."""

        def difference(self, *gone: Iterable[object]) -> set[str]:
            left = set(super().difference(*gone))
            joining.start()
            joining.join(0.5)
            return left

    nodes._alive = Slow(nodes._alive)
    nodes.kill(["node-1"])
    joining.join(DEADLINE)
    assert set(nodes.look()) == {"node-0", "node-2"}
