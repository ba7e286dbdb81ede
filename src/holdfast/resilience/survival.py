"""How long all copies of a query are down together, while one of them recovers (paper 003, sections 4.3 to 4.5).

Time is in units of one node's mean time between failures. With ``k`` other copies, G(t) = (1 - e^-t)^k is the chance
that all of them have failed by t. Integrals of it are taken by Gauss-Legendre quadrature: the weights are positive and
G grows, so the sums grow with their limits as the integrals do, and no cancellation spoils five nines or nine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from holdfast.resilience.scenario import Floats

TOLERANCE = 1e-13
MOST_STEPS = 60


@lru_cache(maxsize=128)
def _nodes(k: int) -> tuple[Floats, Floats]:
    """Points and weights on [0, 1]; G has about degree k where it matters, n points are exact to degree 2n - 1."""
    points, weights = np.polynomial.legendre.leggauss(12 + k // 2)
    return (points + 1.0) / 2.0, weights / 2.0


def all_failed(t: Floats, k: int) -> Floats:
    """G(t): the chance that all of k copies have failed by t."""
    return np.asarray(_power(-np.expm1(-t), k))


def time_all_failed(t: Floats, k: int) -> Floats:
    """The integral of G from 0 to t: expected time, up to t, in which all of k copies have failed."""
    points, weights = _nodes(k)
    return np.asarray(t * (all_failed(t[..., None] * points, k) @ weights))


def recovery_allowed(lost: Floats, k: int) -> Floats:
    """The recovery time t at which ``time_all_failed(t, k)`` equals ``lost``.

    Newton's method on logarithms, from the left: the integral is below t^(k+1)/(k+1), and its logarithm is concave in
    that of t, so that the steps approach the solution from one side and cannot overshoot.
    """
    t = np.asarray(((k + 1) * lost) ** (1.0 / (k + 1)))
    for _ in range(MOST_STEPS):
        value = time_all_failed(t, k)
        step = np.log(lost / value) * value / (t * all_failed(t, k))
        t = t * np.exp(step)
        if np.all(np.abs(step) < TOLERANCE):
            break
    return t


def mean_time_all_failed(fixed: Floats, spread: Floats, k: int) -> tuple[Floats, Floats, Floats]:
    """The mean of ``time_all_failed(fixed + q spread)`` over q uniform on [0, 1], and its two partial derivatives.

    Integrated by parts to G times the chance that recovery takes longer, in two smooth pieces.
    """
    points, weights = _nodes(k)
    varying = all_failed(fixed[..., None] + spread[..., None] * points, k)
    mean = time_all_failed(fixed, k) + spread * (varying @ (weights * (1.0 - points)))
    return np.asarray(mean), np.asarray(varying @ weights), np.asarray(varying @ (weights * points))


def _power(x: Floats, k: int) -> Floats:
    """x^k by squaring: several times faster than the general power, which profiling showed to be most of a solve."""
    result: Floats | None = None
    while k:
        if k & 1:
            result = x if result is None else result * x
        k >>= 1
        if k:
            x = x * x
    return np.ones_like(x) if result is None else result
