"""The policies by name: one dict, no registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.policies.balance import LeastLoad, PowerOfTwo, Random, RoundRobin
from kvbench.policies.cache_aware import CacheAware
from kvbench.policies.hashing import BoundedLoad, Session
from kvbench.policies.indexed import IndexedPrefixes
from kvbench.policies.names import check_policy
from kvbench.policies.prefix_cost import PrefixCost
from kvbench.policies.prefix_estimate import PrefixEstimate
from kvbench.policies.prefix_precise import PrefixPrecise
from kvbench.seeds import rng

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from kvbench.policies.decision import Policy
    from kvbench.policies.indexed import Index

POLICIES: dict[str, Callable[[random.Random], Policy]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "chwbl": BoundedLoad,
    "cache_aware": CacheAware,
    "prefix_estimate": PrefixEstimate,
    "prefix_precise": PrefixPrecise,
    "prefix_cost": PrefixCost,
}
ON_INDEX: dict[str, Callable[[random.Random, IndexedPrefixes], Policy]] = {
    "prefix_precise": PrefixPrecise,
    "prefix_cost": PrefixCost,
}
"""Those that can use an index: they predict what they are told."""


def make_policy(name: str, seed: int, index: Index | None = None) -> Policy:
    """Return a new policy of that name.

    Args:
        name: As in `NAMES`.
        seed: From which its chance is drawn.
        index: What pods hold by their own account, for policies that can use it; None has every
            policy estimate.

    Raises:
        InputError: There is no such policy.
    """
    chance = rng(seed, "policy", check_policy(name))
    if index is not None and name in ON_INDEX:
        return ON_INDEX[name](chance, IndexedPrefixes(index))
    return POLICIES[name](chance)
