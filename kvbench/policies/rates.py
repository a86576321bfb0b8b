"""What a token of prefill and a request beside it cost in time to first token: learned.

Model, the same for all pods: seconds to first token =
base + `prefill` · (uncached tokens, one's own and those waiting before it) + `beside` · (requests
in flight there).

Its three numbers are fitted to observed times by weighted least squares. A sample weighs one over
its time squared, expected or actual, so that relative errors count, not those of the slowest
requests. The past fades, and the prior is worth less than a few samples, so the fit is defined at
once, never runs away where traffic does not vary, and follows where pods change.

The prior is that of an 8 B model on one data-centre GPU: 10,000 tokens of prefill a second, and
1 ms for each request beside it. Where pods are slower, the first dozens of answers say so.
"""

from __future__ import annotations

import numpy as np

_PRIOR = np.array([0.01, 1e-4, 1e-3])  # seconds; seconds per token; seconds per request
_SPREAD = np.array([0.2, 3e-3, 0.05])  # how far from the prior is still believable: a slow CPU
_FLOOR = np.array([0.0, 1e-6, 1e-5])  # time is never negative, and nothing is free
_FADE = 0.995  # per sample: the last 200 or so count
_EVERY = 8  # samples between two fits: a fit costs more than a decision


class Rates:
    """The fitted model.

    Attributes:
        base: Seconds that even a fully cached prompt takes.
        prefill: Seconds per uncached token.
        beside: Seconds per request in flight on the same pod.
    """

    def __init__(self) -> None:
        self.base, self.prefill, self.beside = map(float, _PRIOR)
        self._prior = np.diag(1 / _SPREAD**2)
        self._normal = np.zeros((3, 3))
        self._right = np.zeros(3)
        self._samples = 0

    def expected_s(self, tokens: float, requests: float) -> float:
        """Return seconds to first token behind `tokens` of prefill and beside `requests`."""
        return self.base + self.prefill * tokens + self.beside * requests

    def observe(self, tokens: float, requests: float, ttft_s: float) -> None:
        """Learn from one request: the uncached tokens up to and with it, and those beside it."""
        row = np.array([1.0, tokens, requests])
        weight = 1 / max(self.expected_s(tokens, requests), ttft_s, 1e-3) ** 2
        self._normal = _FADE * self._normal + weight * np.outer(row, row)
        self._right = _FADE * self._right + weight * ttft_s * row
        self._samples += 1
        if self._samples % _EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        """Solve for the three numbers; the prior is worth one sample whose time is certain."""
        fitted = np.linalg.solve(self._normal + self._prior, self._right + self._prior @ _PRIOR)
        self.base, self.prefill, self.beside = map(float, np.maximum(fitted, _FLOOR))
