"""What a token of prefill and a request beside it cost in time to first token: learned.

Model, the same for all pods: seconds to first token =
base + `prefill` · (uncached tokens, one's own and those waiting before it) + `beside` · (requests
in flight there).

Its three numbers are fitted to observed times by weighted least squares. A sample weighs one over
its time squared, expected or actual, so that relative errors count, not those of the slowest
requests. The past fades, and the prior is worth less than a few samples, so the fit is defined at
once, never runs away where traffic does not vary, and follows where pods change. What is fitted is
how far each number is from its prior, in units of its spread: there the prior is a one on the
diagonal of the normal equations, which are then positive definite, and solved by L·D·Lᵀ.

The prior is that of an 8 B model on one data-centre GPU: 10,000 tokens of prefill a second, and
1 ms for each request beside it. Where pods are slower, the first dozens of answers say so.
"""

from __future__ import annotations

from typing import Final

_BASE: Final = 0.01  # the prior: seconds,
_PREFILL: Final = 1e-4  # seconds per token,
_BESIDE: Final = 1e-3  # seconds per request
_SPREAD_BASE: Final = 0.2  # how far from it is still believable: a slow CPU
_SPREAD_PREFILL: Final = 3e-3
_SPREAD_BESIDE: Final = 0.05
_LEAST_PREFILL: Final = 1e-6  # time is never negative, and nothing is free
_LEAST_BESIDE: Final = 1e-5
_LEAST_TIME: Final = 1e-3  # seconds that a sample is weighed by
_FADE: Final = 0.995  # per sample: the last 200 or so count


class Rates:
    """The fitted model.

    Attributes:
        base: Seconds that even a fully cached prompt takes.
        prefill: Seconds per uncached token.
        beside: Seconds per request in flight on the same pod.
    """

    def __init__(self) -> None:
        self.base, self.prefill, self.beside = _BASE, _PREFILL, _BESIDE
        # The sums of the normal equations, but for the prior: the upper triangle, the right side.
        self._a00 = self._a01 = self._a02 = self._a11 = self._a12 = self._a22 = 0.0
        self._b0 = self._b1 = self._b2 = 0.0

    def expected_s(self, tokens: float, requests: float) -> float:
        """Return seconds to first token behind `tokens` of prefill and beside `requests`."""
        return self.base + self.prefill * tokens + self.beside * requests

    def observe(self, tokens: float, requests: float, ttft_s: float) -> None:
        """Learn from one request: the uncached tokens up to and with it, and those beside it."""
        weight = max(self.expected_s(tokens, requests), ttft_s, _LEAST_TIME) ** -2
        off = ttft_s - (_BASE + _PREFILL * tokens + _BESIDE * requests)
        x, y, z = _SPREAD_BASE, _SPREAD_PREFILL * tokens, _SPREAD_BESIDE * requests
        self._a00 = _FADE * self._a00 + weight * x * x
        self._a01 = _FADE * self._a01 + weight * x * y
        self._a02 = _FADE * self._a02 + weight * x * z
        self._a11 = _FADE * self._a11 + weight * y * y
        self._a12 = _FADE * self._a12 + weight * y * z
        self._a22 = _FADE * self._a22 + weight * z * z
        self._b0 = _FADE * self._b0 + weight * off * x
        self._b1 = _FADE * self._b1 + weight * off * y
        self._b2 = _FADE * self._b2 + weight * off * z
        self._fit()

    def _fit(self) -> None:
        """Solve for the three numbers; the prior is worth one sample whose time is certain."""
        d0 = 1 + self._a00
        l10, l20 = self._a01 / d0, self._a02 / d0
        d1 = 1 + self._a11 - l10 * self._a01
        rest = self._a12 - l10 * self._a02
        l21 = rest / d1
        d2 = 1 + self._a22 - l20 * self._a02 - l21 * rest
        y1 = self._b1 - l10 * self._b0
        z = (self._b2 - l20 * self._b0 - l21 * y1) / d2
        y = y1 / d1 - l21 * z
        x = self._b0 / d0 - l10 * y - l20 * z
        self.base = max(_BASE + _SPREAD_BASE * x, 0.0)
        self.prefill = max(_PREFILL + _SPREAD_PREFILL * y, _LEAST_PREFILL)
        self.beside = max(_BESIDE + _SPREAD_BESIDE * z, _LEAST_BESIDE)
