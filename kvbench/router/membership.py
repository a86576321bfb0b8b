"""The pods: which there are, which are offered, and what each has in flight. Pure; no socket.

Rules:

- A pod is offered while its breaker allows it and no probe has found it down. A pod that has not
  been probed yet is taken to be up.
- A refused connection is believed at once, for nobody listens; other failed probes three in a row,
  for a busy pod answers late. A successful probe takes everything back, the breaker included.
- If that leaves nobody, pods whose last probe succeeded are offered whatever their breaker says:
  requests that every pod answers with 500 must not close the house to all others.
- What is in flight is counted by a `Lease`, given back exactly once however the request ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.policies.decision import PodState
from kvbench.router.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from kvbench.router.address import Address

_FAILED_PROBES = 3


@dataclass(slots=True)
class Pod:
    """One pod.

    Attributes:
        address: Where it is.
        state: What policies read.
        requests: Sent to it so far.
        breaker: Its breaker.
        probes_failed: Probes in a row that failed; None before the first.
        down: Whether probes have found it down.
        trouble: The last failure in words, None while all is well.
    """

    address: Address
    state: PodState
    requests: int = 0
    breaker: Breaker = field(default_factory=Breaker)
    probes_failed: int | None = None
    down: bool = False
    trouble: str | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.state.name

    def allows(self, now: float) -> bool:
        """Return whether it may be sent a request."""
        return not self.down and self.breaker.allows(now, self.state.in_flight)


class Lease:
    """A request's place on a pod."""

    __slots__ = ("_held", "_pod", "_prefill_tokens")

    def __init__(self, pod: Pod, prefill_tokens: int) -> None:
        self._pod = pod
        self._prefill_tokens = prefill_tokens
        self._held = True
        pod.requests += 1
        pod.state.in_flight += 1
        pod.state.in_flight_prefill_tokens += prefill_tokens

    def first_token(self) -> None:
        """Give back the prefill: the first token has come."""
        self._pod.state.in_flight_prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0

    def release(self) -> None:
        """Give back the place; again is no harm."""
        self.first_token()
        if self._held:
            self._held = False
            self._pod.state.in_flight -= 1


class Membership:
    """All pods.

    Raises:
        InputError: There is none, or two have the same name.
    """

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.pods: dict[str, Pod] = {}
        for address in addresses:
            if address.name in self.pods:
                raise InputError(f"--pod: {address.name} is given twice")
            self.pods[address.name] = Pod(address, PodState(address.name))
        if not self.pods:
            raise InputError(
                "--pod: expected at least one pod, got none", hint="--pod http://127.0.0.1:8000"
            )

    def offered(self, now: float, without: Container[str] = ()) -> list[Pod]:
        """Return the pods that may be chosen, those in `without` left out."""
        pods = [pod for pod in self.pods.values() if pod.name not in without]
        return [pod for pod in pods if pod.trouble is None or pod.allows(now)] or [
            pod for pod in pods if pod.probes_failed == 0
        ]

    def failed(self, pod: Pod, why: str, now: float) -> None:
        """Take note that a request failed on `pod`."""
        pod.breaker.failed(now)
        pod.trouble = why

    def answered(self, pod: Pod) -> None:
        """Take note that `pod` has begun to answer a request."""
        pod.breaker.answered()

    def succeeded(self, pod: Pod) -> None:
        """Take note that `pod` has answered a request in full."""
        if pod.trouble is not None:
            pod.breaker.succeeded()
            pod.trouble = None

    def probed(self, pod: Pod, why: str | None, *, refused: bool = False) -> None:
        """Take note of a probe: `why` it failed, or None; `refused` if nobody listens."""
        if why is None:
            if pod.probes_failed:
                pod.breaker.succeeded()
                pod.trouble = None
            pod.probes_failed = 0
            pod.down = False
            return
        pod.probes_failed = (pod.probes_failed or 0) + 1
        pod.trouble = why
        pod.down = pod.down or refused or pod.probes_failed >= _FAILED_PROBES

    def listing(self, now: float) -> list[dict[str, object]]:
        """Return what is known of each pod, for people and for the tools that ask."""
        offered = {pod.name for pod in self.offered(now)}
        return [
            {
                "name": pod.name,
                "url": pod.address.url,
                "healthy": pod.name in offered,
                "in_flight": pod.state.in_flight,
                "in_flight_prefill_tokens": pod.state.in_flight_prefill_tokens,
                "requests": pod.requests,
                "trouble": pod.trouble,
            }
            for pod in self.pods.values()
        ]

    def why_nobody(self) -> str:
        """Return a sentence for a request that no pod can be offered to."""
        each = "; ".join(f"{pod.name}: {pod.trouble or 'busy'}" for pod in self.pods.values())
        return f"No pod can take the request. {each}."
