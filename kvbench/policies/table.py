"""The policies by name: no registration."""

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
from kvbench.policies.prefixes import RoutedPrefixes
from kvbench.seeds import rng

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from kvbench.policies.decision import Policy
    from kvbench.policies.indexed import Index
    from kvbench.policies.prefixes import PrefixSource

_ALONE: dict[str, Callable[[random.Random], Policy]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "chwbl": BoundedLoad,
}
_BY_PREFIX: dict[str, Callable[[random.Random, PrefixSource], Policy]] = {
    "cache_aware": CacheAware,
    "prefix_estimate": PrefixEstimate,
    "prefix_precise": PrefixPrecise,
    "prefix_cost": PrefixCost,
}
POLICIES = (*_ALONE, *_BY_PREFIX)
"""Their names."""
ON_INDEX = frozenset({"prefix_precise", "prefix_cost"})
"""Those that can use an index: they predict what they are told."""


def make_policy(
    name: str, seed: int, index: Index | None = None, sizes: Mapping[str, int] | None = None
) -> Policy:
    """Return a new policy of that name.

    Args:
        name: As in `NAMES`.
        seed: From which its chance is drawn.
        index: What pods hold by their own account, for policies that can use it; None has every
            policy estimate.
        sizes: Tokens that the pods' caches hold, by pod; may change. Those of the others are
            learned.

    Raises:
        InputError: There is no such policy.
    """
    chance = rng(seed, "policy", check_policy(name))
    if name in _ALONE:
        return _ALONE[name](chance)
    estimate = RoutedPrefixes(sizes=sizes)
    if index is not None and name in ON_INDEX:
        return _BY_PREFIX[name](chance, IndexedPrefixes(index, estimate))
    return _BY_PREFIX[name](chance, estimate)
