"""What requests share."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.router.fleet import Policies


def test_a_policy_is_made_once_and_learns_of_every_placement():
    """Whoever decided it."""
    policies = Policies("random", seed=0)
    other = policies.named("prefix_cost")
    request = RouteRequest("r", "m", (1, 2), 64, 140)
    policies.placed(request, "a", 0.0)

    assert policies.named("prefix_cost") is other
    assert policies.named("random") is policies.default
    pods = [PodState("a"), PodState("b")]
    assert other.choose(request, pods, 0.0).matched_tokens == 128
    policies.forget("a")
    assert other.choose(request, pods, 0.0).matched_tokens == 0


def test_there_are_no_other_policies():
    """The sentence lists those there are."""
    with pytest.raises(InputError, match="expected one of random"):
        Policies("best", seed=0)
