"""Replication planning: which tasks to keep a second live copy of, within a budget."""

from holdfast.replication.decomposition import Segment, SubTopology, Unit, decompose

__all__ = ["Segment", "SubTopology", "Unit", "decompose"]
