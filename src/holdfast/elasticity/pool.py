"""Standby nodes that hide the minutes a new one takes (paper 002, 5.2), and how many of them to keep.

Pure: times come in, nodes and numbers go out. Whoever owns a Pool orders nodes as it wants and tells it what arrived.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import Invalid

MEASURED = 8
"""So many of the last arrivals are looked at for how long a node takes."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """``provisioning``: seconds that a node takes, until measured; ``memory``: seconds that a request counts for."""

    provisioning: float = 90.0
    least: int = 2
    most: int = 8
    memory: float = 900.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.provisioning) and self.provisioning > 0):
            raise Invalid(f"pool: provisioning must take more than 0 seconds, got {self.provisioning:g}")
        if not (math.isfinite(self.memory) and self.memory > 0):
            raise Invalid(f"pool: memory must be more than 0 seconds, got {self.memory:g}")
        if not 0 <= self.least <= self.most:
            raise Invalid(f"pool: needs 0 <= least <= most, got {self.least} and {self.most}")


class Pool:
    """Nodes that stand by, nodes on their way, and requests that found none and wait.

    The rule: keep as many as will be asked for while one node is on its way, at the rate of the last ``memory``
    seconds, rounded up, between ``least`` and ``most``. After a quiet ``memory`` it is down to ``least``.
    """

    def __init__(self, policy: PoolPolicy | None = None, idle: Sequence[str] = ()) -> None:
        self.policy = policy or PoolPolicy()
        self._idle: list[str] = list(idle)
        self._ordered: deque[float] = deque()
        self._took: deque[float] = deque(maxlen=MEASURED)
        self._requests: deque[tuple[float, int]] = deque()
        self._since = math.inf
        self.waiting = 0

    @property
    def idle(self) -> tuple[str, ...]:
        return tuple(self._idle)

    @property
    def coming(self) -> int:
        return len(self._ordered)

    @property
    def provisioning(self) -> float:
        """Seconds that a node takes: the mean of the last arrivals, or what was declared."""
        return sum(self._took) / len(self._took) if self._took else self.policy.provisioning

    def request(self, now: float, n: int = 1) -> list[str]:
        """Up to n nodes at once; for the rest the request waits, and ``arrived`` or ``returned`` hand them over."""
        if n < 1:
            raise Invalid(f"pool: one node or more can be requested, got {n}")
        self._since = min(self._since, now)
        self._requests.append((now, n))
        self.waiting += n
        return self._hand_over()

    def ordered(self, now: float, n: int = 1) -> None:
        """So many were asked of the provider."""
        self._ordered.extend([now] * n)

    def arrived(self, now: float, nodes: Sequence[str]) -> list[str]:
        """Nodes that came, ordered or not; those handed over to requests that waited."""
        for _ in nodes:
            # One that is there at once says nothing about how long they take.
            if self._ordered and (took := now - self._ordered.popleft()) > 0:
                self._took.append(took)
        return self.returned(nodes)

    def returned(self, nodes: Sequence[str]) -> list[str]:
        """Nodes that a job has no more use for; those handed over to requests that waited."""
        if twice := sorted(set(nodes) & set(self._idle)):
            raise Invalid(f"pool: node {twice[0]} stands by already")
        self._idle.extend(nodes)
        return self._hand_over()

    def lost(self, nodes: Sequence[str]) -> None:
        """Standby nodes that died."""
        self._idle = [node for node in self._idle if node not in set(nodes)]

    def refused(self, n: int = 1) -> None:
        """The provider will not deliver so many of the oldest that were ordered."""
        for _ in range(min(n, len(self._ordered))):
            self._ordered.popleft()

    def overdue(self, now: float, seconds: float) -> int:
        """How many were ordered longer ago than this and have not come."""
        return sum(1 for at in self._ordered if now - at > seconds)

    def target(self, now: float) -> int:
        """How many should stand by now."""
        while self._requests and self._requests[0][0] < now - self.policy.memory:
            self._requests.popleft()
        # A young pool has not seen a whole memory yet; less than one provisioning time would be no rate at all.
        seen = max(self.provisioning, min(self.policy.memory, now - self._since))
        expected = sum(n for _, n in self._requests) * self.provisioning / seen
        return min(max(math.ceil(expected - 1e-9), self.policy.least), self.policy.most)

    def wanted(self, now: float) -> int:
        """How many to order now: for those who wait, and to fill the pool."""
        return max(0, self.target(now) + self.waiting - len(self._idle) - self.coming)

    def surplus(self, now: float) -> int:
        """How many of those that stand by are more than needed; ``release`` names and forgets them."""
        return max(0, len(self._idle) - self.target(now))

    def release(self, now: float) -> list[str]:
        """Give back what is not needed: the nodes that left the pool."""
        gone = self._idle[len(self._idle) - self.surplus(now) :]
        del self._idle[len(self._idle) - len(gone) :]
        return gone

    def _hand_over(self) -> list[str]:
        n = min(self.waiting, len(self._idle))
        given, self._idle = self._idle[:n], self._idle[n:]
        self.waiting -= n
        return given
