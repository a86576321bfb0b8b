"""The policies' names. A module of its own: the command line needs no more than this."""

from __future__ import annotations

import difflib

from kvbench.errors import InputError

NAMES = (
    "random",
    "round_robin",
    "least_load",
    "power_of_two",
    "session",
    "chwbl",
    "cache_aware",
    "prefix_estimate",
    "prefix_precise",
    "prefix_cost",
)

DEFAULT = "prefix_cost"


def check_policy(name: str, option: str = "policy") -> str:
    """Return a policy's name.

    Args:
        name: The name.
        option: What was given it, for the error.

    Raises:
        InputError: There is no such policy.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"{DEFAULT} is the default" if option.endswith("policy") else None
        raise InputError(
            f"{option}: expected one of {', '.join(NAMES)}, got {name!r}",
            hint=f"did you mean {near[0]}?" if near else hint,
        )
    return name
