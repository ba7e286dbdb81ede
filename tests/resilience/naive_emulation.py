"""The emulated strategies again, one timeline and one event at a time, in plain Python: the reference for the lanes.

Each takes the times between failures and which copy fails, and gives the downtime up to each next failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def replay_lossless(gaps: Sequence[float], window: float, factor: float) -> list[float]:
    """Follows the position of the output through each gap in closed pieces: load the window, then catch up."""
    lost, behind = [], 0.0
    for gap in gaps:
        loading = window / factor
        if gap <= loading:
            behind, down = behind + gap, gap
        else:
            behind += loading
            catching = behind / (factor - 1.0)
            if gap <= loading + catching:
                behind, down = behind - (gap - loading) * (factor - 1.0), gap
            else:
                behind, down = 0.0, loading + catching
        lost.append(down)
    return lost


def periodic(
    gaps: Sequence[float], start: float, last: int, period: float, factor: float, moved: Sequence[float]
) -> list[float]:
    """A node with a position in its input: it restores, replays at the factor, stops at multiples of the period."""
    lost, now = [], start
    for gap in gaps:
        end = now + gap
        clock, position, number = now + moved[last % len(moved)] / factor, last * period, last
        down_until, down = min(clock, end), 0.0
        down += down_until - now
        while clock < end:
            boundary = (number + 1) * period
            if position < clock - 1e-12:  # behind: replay until level with the clock, the next checkpoint or a failure
                level = (clock - position) / (factor - 1.0)
                reach = (boundary - position) / factor
                step = min(level, reach, end - clock)
                down += step
                clock += step
                position = clock if step == level else position + step * factor
            else:
                step = min(boundary - clock, end - clock)
                clock += step
                position = clock
            if clock < end and position >= boundary - 1e-9:
                number += 1
                takes = moved[number % len(moved)] / factor
                down += min(takes, end - clock)
                position = boundary
                clock += takes
                if clock <= end:
                    last = number
        lost.append(down)
        now = end
    return lost


def active_periodic(
    events: Sequence[tuple[float, int]], start: float, nodes: int, period: float, factor: float, moved: Sequence[float]
) -> list[float]:
    """Copies with the time at which each is ready; checkpoints sent by the copy up the longest, one after another."""
    spare = 1.0 / factor
    ready = [-math.inf] * nodes
    number = math.floor(start / period)
    newest, due, sending = (number - 1) * period, number, None
    if start - number * period >= moved[number % len(moved)] * spare:
        newest, due = number * period, number + 1
    else:
        sending = number * period
    lost, now = [], start
    for gap, failing in events:
        sender = min(range(nodes), key=lambda copy: ready[copy])
        restoring = moved[math.floor(newest / period) % len(moved)] * spare
        behind = now - newest + restoring
        ready[failing] = now + restoring + behind * spare / (1.0 - spare)
        if failing == sender:
            sending = None
        end = now + gap
        first = min(ready)
        lost.append(min(max(first - now, 0.0), gap))
        while True:  # checkpoints that are sent until the next failure
            begin = sending if sending is not None else max(due * period, first, now)
            if begin > end:
                sending = None
                break
            done = begin + moved[math.floor(begin / period) % len(moved)] * spare
            if done > end:
                sending = begin
                break
            newest, due, sending = begin, math.floor(begin / period) + 1, None
        now = end
    return lost


def on_demand(events: Sequence[tuple[float, int]], nodes: int, factor: float, moved: float) -> tuple[list[float], int]:
    """Copies that hold the state or wait for a sender. Returns downtimes and how often the state was lost."""
    takes = moved / factor
    behind = takes / (1.0 - 1.0 / factor)
    ready, holds, sender = [-math.inf] * nodes, [-math.inf] * nodes, [-1] * nodes
    lost, losses, now = [], 0, 0.0
    for gap, failing in events:
        gone = [failing]
        for copy in gone:
            gone += [i for i in range(nodes) if now < holds[i] < math.inf and sender[i] == copy and i not in gone]
        for copy in gone:
            ready[copy] = holds[copy] = math.inf
        if all(hold > now for hold in holds):
            losses += 1
            ready, holds = [-math.inf] * nodes, [-math.inf] * nodes
        else:
            for copy in [failing, *sorted(gone[1:])]:
                up = [i for i in range(nodes) if ready[i] <= now]
                others = [i for i in range(nodes) if math.isfinite(ready[i]) or ready[i] == -math.inf]
                if len(up) == 1 and len(others) > 1:
                    others.remove(up[0])
                chosen = min(others, key=lambda i: ready[i])
                start = max(ready[chosen], now)
                holds[copy], sender[copy] = start + takes, chosen
                ready[copy] = ready[chosen] = start + behind
        lost.append(min(max(min(ready) - now, 0.0), gap))
        now += gap
    return lost, losses
