"""How a router behaves: what its flags say."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.policies.names import DEFAULT
from kvbench.router.forward import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """How a router behaves.

    Attributes:
        name: What pods, and other routers, are told of who asks. One that several routers share
            makes each take what another has passed on for its own.
        policy: Which pod gets a request, unless the request says otherwise.
        seed: Of every random choice.
        allow_policy_header: Whether a request may say otherwise, in `x-kvbench-policy`.
        limits: How long a pod may take.
        probe_every_s: Seconds between two probes of a pod; 0 is never.
        probe_timeout_s: Seconds that a probe may take.
        tokenizer: Directory of the models' tokenizer; None takes each model's own root.
        shadows: Policies that follow the traffic without serving it.
        decision_log: File that gets a line for each decision.
        pods_file: A file that names pods, besides those that are given.
        keys_file: A file of API keys; None lets everybody ask.
        look_every_s: Seconds between two looks at these files.
        resolve_every_s: Seconds between two questions for DNS names.
        admin: Whether there is an admin API.
        max_in_flight: Requests under way at once; None is no limit.
        queue: Requests that may wait for that limit.
        patience_s: Seconds that one may wait.
        max_body: Bytes of a request's body.
    """

    name: str = "kvbench"
    policy: str = DEFAULT
    seed: int = 0
    allow_policy_header: bool = False
    limits: Limits = field(default_factory=Limits)
    probe_every_s: float = 1.0
    probe_timeout_s: float = 5.0
    tokenizer: Path | None = None
    shadows: tuple[str, ...] = ()
    decision_log: Path | None = None
    pods_file: Path | None = None
    keys_file: Path | None = None
    look_every_s: float = 1.0
    resolve_every_s: float = 5.0
    admin: bool = False
    max_in_flight: int | None = None
    queue: int = 0
    patience_s: float = 30.0
    max_body: int = 64 * 2**20


@contextlib.contextmanager
def given_by(flag: str) -> Iterator[None]:
    """Name a flag in errors about the file or directory that it names.

    Raises:
        InputError: One was raised.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{flag} {error.message}", hint=error.hint) from None
