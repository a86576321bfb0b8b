"""What others have under way on the pods: other routers, clients that ask a pod directly. Pure.

A pod says how many requests it has, running and waiting; those beyond what this router sent it are
others'. They are added to the pod's load, so that every policy sees them. Rules:

- What is ours is never taken for others'. A reading is of some moment between asking and hearing;
  at no such moment did more of ours lie there than when it was asked for, and all begun since.
- A reading moves what is believed half of the way. It is a sample, a second old when the next one
  comes: taken at its word it sends routers that read at the same time from pod to pod together, and
  where requests are short it is little but noise. One request that is seen once does not count.
- No reading is one of 0: where a pod stops telling, others are forgotten by halves, and one that
  never tells has none.
- How much prefill others' requests wait for is not told. Each is taken to be like one of ours,
  whose uncached tokens in flight, over requests in flight, are averaged whenever a pod is read.
- An answer that a pod counts several times (`n`, a list of prompts) is one request of ours, and the
  rest count as others': they lie on the pod, whosever they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.router.membership import Pod

_STEP = 0.5  # of the way from what is believed to what is read
_FADE = 0.95  # per reading, of what our own requests are like
_MOST = 1e6  # requests: no pod has more, whatever it says


class Others:
    """Keeps what others have under way, and lays it on the pods."""

    def __init__(self) -> None:
        self._believed: dict[str, float] = {}  # requests, by pod
        self._requests = self._tokens = 0.0  # of ours, in flight on a pod

    def asked(self, pod: Pod) -> int:
        """Return a mark, to be given to `heard` with what the pod answers."""
        return pod.own_in_flight - pod.requests

    def heard(self, pod: Pod, mark: int, told: float | None) -> None:
        """Take in how many requests a pod has by its own account; None if it does not say."""
        own = pod.own_in_flight
        if own:
            self._requests = _FADE * self._requests + own
            self._tokens = _FADE * self._tokens + pod.own_prefill_tokens
        ours = mark + pod.requests
        beyond = 0.0 if told is None else min(max(told - ours, 0.0), _MOST)
        believed = self._believed.get(pod.name, 0.0)
        believed = self._believed[pod.name] = believed + _STEP * (beyond - believed)
        requests = round(believed)
        each = self._tokens / self._requests if self._requests else 0.0
        pod.lay(requests, round(requests * each))

    def forget(self, pod: Pod) -> None:
        """Take back what was laid on a pod."""
        self._believed.pop(pod.name, None)
        pod.lay(0, 0)
