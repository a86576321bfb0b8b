"""The pods: which there are, which are offered, and what each has in flight. Pure; no socket.

Rules:

- A pod is offered while its breaker allows it and no probe has found it down. A pod that has not
  been probed yet is taken to be up.
- A refused connection is believed at once, for nobody listens; other failed probes three in a row,
  for a busy pod answers late. A successful probe takes everything back, the breaker included.
- An answer of 4xx is the client's fault, however many there are, until another pod has answered
  the same prompt: then the first has failed, for its key, model or template is wrong. Refusing
  takes no time, so such a pod would look the least loaded and draw most of the traffic. A pod is
  doubted so after five in a row, and trusted again once another has refused what it refused.
- A pod that is drained is offered nothing new, whatever its state; what it has under way ends.
- If that leaves nobody, pods whose last probe succeeded are offered whatever their breaker says:
  requests that every pod answers with 500 must not close the house to all others.
- What is in flight is counted by a `Lease`, given back exactly once however the request ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvbench.http.address import Address  # noqa: TC001  # compiled, the class looks at it
from kvbench.policies.pod_state import PodState
from kvbench.router.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

logger = logging.getLogger(__name__)

_FAILED_PROBES: Final = 3
_REFUSALS: Final = 5


@dataclass(slots=True)
class Pod:
    """One pod.

    Attributes:
        address: Where it is.
        state: What policies read: what was sent to it, and what others have under way there.
        others_in_flight: Of the requests in its state, those of others.
        others_prefill_tokens: Of the tokens in its state, those of others.
        given: What it is as `--pod` takes it, with where its events are; "" is its URL.
        requests: Sent to it so far.
        draining: Whether it is to get no more.
        breaker: Its breaker.
        refusals: Prompts in a row that it answered with 4xx since another was last asked.
        met: Whether a probe has ever succeeded.
        began: When its process began by its own account, calendar seconds; 0 if it has not said.
        restarts: How many its events had told of when it was last asked for that.
        probes_failed: Probes in a row that failed; None before the first.
        down: Whether probes have found it down.
        trouble: The last failure in words, None while all is well.
    """

    address: Address
    state: PodState
    others_in_flight: int = 0
    others_prefill_tokens: int = 0
    given: str = ""
    requests: int = 0
    draining: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    refusals: int = 0
    met: bool = False
    began: float = 0.0
    restarts: int = 0
    probes_failed: int | None = None
    down: bool = False
    trouble: str | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.state.name

    @property
    def own_in_flight(self) -> int:
        """Requests sent to it and not yet ended."""
        return self.state.in_flight - self.others_in_flight

    @property
    def own_prefill_tokens(self) -> int:
        """Uncached prompt tokens that this router has in flight there."""
        return self.state.in_flight_prefill_tokens - self.others_prefill_tokens

    def lay(self, in_flight: int, prefill_tokens: int) -> None:
        """Replace what others have under way there."""
        self.state.in_flight += in_flight - self.others_in_flight
        self.state.in_flight_prefill_tokens += prefill_tokens - self.others_prefill_tokens
        self.others_in_flight, self.others_prefill_tokens = in_flight, prefill_tokens

    def allows(self, now: float) -> bool:
        """Return whether it may be sent a request."""
        return not self.down and self.breaker.allows(now, self.own_in_flight, self.requests)


class Lease:
    """A request's place on a pod.

    Attributes:
        prefilled: Whether the first token has come, or was to be expected by now.
    """

    __slots__ = ("_held", "_pod", "_prefill_tokens", "prefilled")

    def __init__(self, pod: Pod, prefill_tokens: int) -> None:
        self._pod = pod
        self._prefill_tokens = prefill_tokens
        self._held = True
        self.prefilled = False
        pod.requests += 1
        pod.state.in_flight += 1
        pod.state.in_flight_prefill_tokens += prefill_tokens

    def first_token(self) -> None:
        """Give back the prefill: the first token has come."""
        self.prefilled = True
        if self._prefill_tokens:
            self._pod.state.in_flight_prefill_tokens -= self._prefill_tokens
            self._prefill_tokens = 0

    def release(self) -> None:
        """Give back the place; again is no harm."""
        if self._held:
            self.first_token()
            self._held = False
            self._pod.state.in_flight -= 1


class Membership:
    """All pods, which may come and go.

    Attributes:
        pods: By name.
    """

    def __init__(self, addresses: Iterable[Address] = ()) -> None:
        self.pods: dict[str, Pod] = {}
        self._open: list[Pod] = []  # those that are not drained
        self._calm = True  # whether none of these is in trouble
        for address in addresses:
            self.add(address)

    def add(self, address: Address) -> Pod:
        """Return a new pod, which takes the place of one of the same name."""
        pod = self.pods[address.name] = Pod(address, PodState(address.name))
        self._sort()
        return pod

    def remove(self, name: str) -> Pod:
        """Take a pod out; its leases go on counting on it.

        Raises:
            KeyError: There is none of that name.
        """
        pod = self.pods.pop(name)
        self._sort()
        return pod

    def drain(self, name: str, *, draining: bool = True) -> None:
        """Offer a pod no more, or again.

        Raises:
            KeyError: There is none of that name.
        """
        self.pods[name].draining = draining
        self._sort()

    def _sort(self) -> None:
        self._open = [pod for pod in self.pods.values() if not pod.draining]
        self._calm = all(pod.trouble is None for pod in self._open)

    def offered(
        self, now: float, without: Container[str] = (), among: Container[str] | None = None
    ) -> list[Pod]:
        """Return the pods that may be chosen: not those in `without`, only those in `among`."""
        if self._calm and not without and among is None:
            return self._open
        pods = [pod for pod in self._open if pod.state.name not in without]
        if among is not None:
            pods = [pod for pod in pods if pod.state.name in among]
        return [pod for pod in pods if pod.trouble is None or pod.allows(now)] or [
            pod for pod in pods if pod.probes_failed == 0
        ]

    def failed(self, pod: Pod, why: str, now: float) -> None:
        """Take note that a request failed on `pod`."""
        if pod.breaker.failed(now, pod.requests):
            pause_s = pod.breaker.pause_s
            logger.warning("%s is left alone for %g s if others can: %s", pod.name, pause_s, why)
        pod.trouble = why
        self._calm = False

    def answered(self, pod: Pod) -> None:
        """Take note that `pod` has begun to answer a request."""
        pod.breaker.answered()

    def succeeded(self, pod: Pod) -> None:
        """Take note that `pod` has answered a request in full."""
        pod.refusals = 0
        if pod.trouble is not None:
            self._recovered(pod)

    def refused(self, pod: Pod) -> None:
        """Take note that `pod` has answered a prompt with 4xx."""
        pod.refusals += 1
        if pod.trouble is not None:
            self._recovered(pod)

    def doubts(self, pod: Pod) -> bool:
        """Return whether another pod is to be asked, now, before another 4xx of `pod` is believed.

        Of requests under way together one asks, and the pod is trusted until it is judged.
        """
        doubted = pod.refusals >= _REFUSALS
        if doubted:
            pod.refusals = 0
        return doubted

    def judged(self, pod: Pod, other: str, status: int, now: float) -> None:
        """Take note of what another pod has answered to a prompt that `pod` was doubted for."""
        if status < 400:
            self.failed(pod, f"refuses prompts with 4xx that {other} answers", now)
            pod.refusals = _REFUSALS

    def _recovered(self, pod: Pod) -> None:
        """Take everything back."""
        if pod.breaker.pause_s and not pod.down:  # else who probes it says so
            logger.info("%s answers again", pod.name)
        pod.breaker.succeeded()
        pod.trouble = None
        self._sort()

    def probed(self, pod: Pod, why: str | None, *, refused: bool = False) -> None:
        """Take note of a probe: `why` it failed, or None; `refused` if nobody listens."""
        if why is None:
            if pod.probes_failed:
                self._recovered(pod)
            pod.probes_failed = 0
            pod.down = False
            pod.met = True
            return
        pod.probes_failed = (pod.probes_failed or 0) + 1
        pod.trouble = why
        self._calm = False
        pod.down = pod.down or refused or pod.probes_failed >= _FAILED_PROBES

    def listing(self, now: float) -> list[dict[str, object]]:
        """Return what is known of each pod, for people and for the tools that ask.

        `healthy` is a pod's health alone: one that is drained is offered nothing and may be well.
        """
        offered = {pod.name for pod in self.offered(now)}
        return [
            {
                "name": pod.name,
                "url": pod.address.url,
                "pod": pod.given or pod.address.url,
                "healthy": pod.name in offered
                or (pod.draining and (pod.trouble is None or pod.allows(now))),
                "in_flight": pod.own_in_flight,
                "in_flight_prefill_tokens": pod.own_prefill_tokens,
                "others_in_flight": pod.others_in_flight,
                "requests": pod.requests,
                "draining": pod.draining,
                "trouble": pod.trouble,
            }
            for pod in self.pods.values()
        ]

    def why_nobody(self, among: Container[str] | None = None) -> str:
        """Return a sentence for a request that no pod (of those in `among`) can be offered to."""
        each = "; ".join(
            f"{pod.name}: {'draining' if pod.draining else pod.trouble or 'busy'}"
            for pod in self.pods.values()
            if among is None or pod.name in among
        )
        return f"No pod can take the request. {each or 'There is none'}."
