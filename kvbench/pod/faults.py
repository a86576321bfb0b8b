"""Faults on demand: what goes wrong, for which requests, as plain data.

A fault is written `kind:key=value,…`:

| kind | what happens | keys |
|---|---|---|
| `start-delay` | the pod is ready later | `seconds` |
| `start-fail` | the pod does not start | |
| `error` | a request is answered with a status | `status` (500), `rate`, `nth` |
| `cut` | a stream ends without its end | `after` (tokens, 0), `rate`, `nth` |
| `stall` | a stream pauses | `after` (tokens, 0), `seconds` (5), `rate`, `nth` |
| `pin` | a stream stays open and its blocks in use until its client leaves | `rate`, `nth` |
| `degenerate` | an answer is ill | `kind` (loop; salad, echo), `rate`, `nth` |
| `drop-events` | KV events are numbered and not sent | `rate` |

`rate` is a probability (1 if not given), `nth` picks one request by its number, from 1. Which
requests a rate meets is decided by the seed and the request's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvbench.errors import InputError
from kvbench.seeds import rng

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEYS = {
    "start-delay": {"seconds"},
    "start-fail": set[str](),
    "error": {"status", "rate", "nth"},
    "cut": {"after", "rate", "nth"},
    "stall": {"after", "seconds", "rate", "nth"},
    "pin": {"rate", "nth"},
    "degenerate": {"kind", "rate", "nth"},
    "drop-events": {"rate"},
}
_TYPES = {"rate": float, "nth": int, "after": int, "seconds": float, "status": int, "kind": str}

Illness: TypeAlias = Literal["loop", "salad", "echo"]
ILLNESSES: tuple[Illness, ...] = ("loop", "salad", "echo")
"""`kind` of a degenerate answer: one word over and over, ten words in any order, the prompt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault; see the module for what its fields mean."""

    kind: str
    rate: float = 1.0
    nth: int = 0
    after: int = 0
    seconds: float = 5.0
    status: int = 500
    illness: Illness = "loop"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong with one request.

    Attributes:
        status: The error that it gets instead of an answer.
        cut_after: Tokens after which its stream is cut.
        stall_after: Tokens after which its stream pauses.
        stall_s: For how long, seconds.
        degenerate: In which way its answer is degenerate, None if it is not.
        pins: Whether its blocks stay in use until its client leaves.
    """

    status: int | None = None
    cut_after: int | None = None
    stall_after: int | None = None
    stall_s: float = 0.0
    degenerate: Illness | None = None
    pins: bool = False


def parse_fault(text: str) -> Fault:
    """Return the fault that `text` describes.

    Raises:
        InputError: It describes none.
    """
    kind, _, rest = text.partition(":")
    if kind not in _KEYS:
        raise InputError(
            f"expected one of {', '.join(_KEYS)}, got {kind!r}",
            where="fault",
            hint='faults are written "cut:after=5,rate=0.1"',
        )
    values: dict[str, float | str] = {}
    for pair in filter(None, rest.split(",")):
        name, _, value = pair.partition("=")
        if name not in _KEYS[kind]:
            known = ", ".join(sorted(_KEYS[kind])) or "none"
            raise InputError(f"{kind}: expected keys {known}, got {name!r}", where="fault")
        try:
            values["illness" if name == "kind" else name] = _TYPES[name](value)
        except ValueError:
            raise InputError(
                f"{kind}: {name}: expected a number, got {value!r}", where="fault"
            ) from None
    return _checked(Fault(kind, **values))  # type: ignore[arg-type]  # converted to the field's type


def _checked(fault: Fault) -> Fault:
    """Return the fault if its values make sense."""
    if not 0 <= fault.rate <= 1:
        raise InputError(f"{fault.kind}: rate: expected 0 to 1, got {fault.rate}", where="fault")
    if min(fault.nth, fault.after, fault.seconds) < 0:
        raise InputError(f"{fault.kind}: expected no negative numbers", where="fault")
    if fault.illness not in ILLNESSES:
        raise InputError(
            f"{fault.kind}: kind: expected one of {', '.join(ILLNESSES)}, got {fault.illness!r}",
            where="fault",
        )
    if not 400 <= fault.status <= 599:
        raise InputError(f"{fault.kind}: status: expected 400 to 599, got {fault.status}")
    return fault


class Faults:
    """The faults that are on.

    Args:
        faults: All of them.
        seed: Decides which requests a rate meets.
    """

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.active = tuple(faults)
        self._seed = seed

    def start(self) -> tuple[float, bool]:
        """Return by how many seconds the start is delayed, and whether it then fails."""
        kinds = [fault.kind for fault in self.active]
        delay = sum(fault.seconds for fault in self.active if fault.kind == "start-delay")
        return delay, "start-fail" in kinds

    def of_request(self, number: int) -> Trouble:
        """Return what goes wrong with request `number`, from 1."""
        hit = {fault.kind: fault for fault in self.active if self._meets(fault, number)}
        error, cut, stall = hit.get("error"), hit.get("cut"), hit.get("stall")
        return Trouble(
            status=error.status if error else None,
            cut_after=cut.after if cut else None,
            stall_after=stall.after if stall else None,
            stall_s=stall.seconds if stall else 0.0,
            degenerate=hit["degenerate"].illness if "degenerate" in hit else None,
            pins="pin" in hit,
        )

    def drops_events(self, number: int) -> bool:
        """Return whether batch `number` of events is lost."""
        return any(
            fault.kind == "drop-events" and self._meets(fault, number) for fault in self.active
        )

    def _meets(self, fault: Fault, number: int) -> bool:
        """Return whether a fault meets a request."""
        if fault.nth:
            return number == fault.nth
        return fault.rate >= 1 or rng(self._seed, fault.kind, number).random() < fault.rate
