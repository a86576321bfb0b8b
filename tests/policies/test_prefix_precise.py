"""llm-d's weights: prefix 3, queue 2, memory 2."""

from __future__ import annotations

from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import make_policy


class Known:
    """An index that knows these pods."""

    def __init__(self, **held):
        self.held = held

    def match(self, _hashes, _block_size, pods):
        """Return what is known."""
        return {pod: self.held[pod] for pod in pods if pod in self.held}


REQUEST = RouteRequest("r", "m", (), 80, 100, None, tuple(range(9)), 10)


def choose(index, *pods):
    """Return the decision."""
    return make_policy("prefix_precise", 1, index).choose(REQUEST, pods, 0.0)


def test_the_terms_are_the_three_scores_with_their_weights():
    """Half the prompt is cached on the busier pod."""
    decision = choose(Known(a=5, b=0), PodState("a", 4, 300), PodState("b", 0, 100))
    a, b = decision.candidates
    assert a.terms == {"prefix": 1.5, "queue": 0.0, "memory": 0.5}
    assert b.terms == {"prefix": 0.0, "queue": 2.0, "memory": 1.5}
    assert (a.cost, b.cost) == (5.0, 3.5)
    assert (decision.pod, decision.reason) == ("b", "load")


def test_where_queues_are_equal_the_prefix_decides():
    """All of them score 2, as llm-d has it."""
    decision = choose(Known(a=0, b=9), PodState("a", 3), PodState("b", 3))
    assert [candidate.terms["queue"] for candidate in decision.candidates] == [2.0, 2.0]
    assert (decision.pod, decision.reason, decision.matched_tokens) == ("b", "prefix", 90)
