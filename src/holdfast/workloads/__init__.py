"""Workloads by name: pipelines with inputs to run, measure and break them with."""

from __future__ import annotations

from holdfast.errors import Invalid, instead
from holdfast.workloads.bargain_discovery import BARGAIN_DISCOVERY
from holdfast.workloads.hashtags import HASHTAGS
from holdfast.workloads.linear_road import LINEAR_ROAD
from holdfast.workloads.top_k import TOP_K
from holdfast.workloads.traffic_incidents import TRAFFIC_INCIDENTS
from holdfast.workloads.word_count import WORD_COUNT
from holdfast.workloads.word_frequency import WORD_FREQUENCY
from holdfast.workloads.workload import Options, Workload

WORKLOADS: dict[str, Workload] = {
    each.name: each
    for each in (WORD_COUNT, HASHTAGS, WORD_FREQUENCY, TOP_K, TRAFFIC_INCIDENTS, BARGAIN_DISCOVERY, LINEAR_ROAD)
}


def workload(name: str) -> Workload:
    """The workload of this name."""
    if name not in WORKLOADS:
        raise Invalid(f"unknown workload {name!r}; {instead(name, WORKLOADS)}")
    return WORKLOADS[name]


__all__ = ["WORKLOADS", "Options", "Workload", "workload"]
