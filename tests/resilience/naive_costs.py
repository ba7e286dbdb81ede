"""The models as the paper writes them, one scenario at a time: plain integrals, plain bisection, plain search.

Slow and simple; the reference that the vectorised models are held against.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from scipy.integrate import quad


def others_failed(t: float, mtbf: float, k: int) -> float:
    return (1.0 - math.exp(-t / mtbf)) ** k


def charged(recovery: float, mtbf: float, k: int) -> float:
    """B = integral over t < recovery of g(t) (recovery - t), with g the density: the paper's form, not by parts."""
    if k == 0:
        return recovery

    def density(t: float) -> float:
        return k / mtbf * math.exp(-t / mtbf) * others_failed(t, mtbf, k - 1)

    # In pieces: the density is all but 0 after some 50 failure times, where quadrature over a long range misses it.
    cuts = [0.0, *(cut for cut in (mtbf, 10 * mtbf, 50 * mtbf) if cut < recovery), min(recovery, 200 * mtbf)]
    return sum(
        quad(lambda t: density(t) * (recovery - t), low, high, epsabs=0.0, epsrel=1e-10)[0]
        for low, high in itertools.pairwise(cuts)
    )


def periodic_downtime(u: float, s: float, c: float, f: float) -> float:
    """Model 3's left side: downtime of a failure period, checkpoints and recovery."""
    catch_up = u * s / (1.0 - u)
    return u * (s + catch_up) * f / c + u * (s + 2.0 * catch_up + (c / 2.0) / (1.0 - u))


def active_periodic_downtime(u: float, s: float, c: float, f: float, k: int) -> float:
    """Model 4's left side: the mean over p uniform on [0, C] of what is charged."""

    def of_age(p: float) -> float:
        return charged(u * s + u * (2.0 * u * s + p) / (1.0 - u), f, k)

    return quad(of_age, 0.0, c, epsabs=0.0, epsrel=1e-9)[0] / c


def on_demand_recovery(u: float, s: float) -> float:
    return u * (s + u * s / (1.0 - u))


def durability_lost(u: float, s: float, f: float, k: int, horizon: float) -> float:
    """The chance that all copies are lost within the horizon."""
    fatal = others_failed(on_demand_recovery(u, s), f, k)
    return -math.expm1(k * horizon / f * math.log1p(-fatal))


def root(left: Callable[[float], float], right: float, low: float = 1e-15, high: float = 1.0 - 1e-12) -> float:
    """Where a growing function meets its bound, by halving on a log scale; ``high`` if it never does."""
    if left(high) <= right:
        return high
    for _ in range(200):
        middle = math.sqrt(low * high)
        if left(middle) > right:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def least(cost: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a function with one valley, by cutting thirds on a log scale (section 4.6.2)."""
    for _ in range(200):
        a, b = low ** (2 / 3) * high ** (1 / 3), low ** (1 / 3) * high ** (2 / 3)
        if cost(a) < cost(b):
            high = b
        else:
            low = a
    return math.sqrt(low * high)


def periodic_cost(s: float, c: float, f: float, k: float, sla: float) -> float:
    r = 1.0 / root(lambda u: periodic_downtime(u, s, c, f), (1.0 - sla) * f)
    return ((k + 2 + r) * f + s + c / 2 + k * s * f / c) / ((k + 3) * f)


def active_periodic_cost(s: float, c: float, f: float, k: float, n: int) -> float:
    return ((k + 1 + 2 * n) * f + 2 * n * (s + c / 2) + (k + 1) * s * f / c) / ((k + 3) * f)
