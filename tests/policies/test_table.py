"""What holds for every policy, whatever it does: one suite, all policies."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.fleet import play

from kvbench.errors import InputError
from kvbench.policies.decision import Outcome, Reason, RouteRequest
from kvbench.policies.names import DEFAULT, NAMES
from kvbench.policies.pod_state import PodState
from kvbench.policies.table import POLICIES, make_policy

every_policy = pytest.mark.parametrize("name", list(POLICIES))

requests = st.builds(
    RouteRequest,
    id=st.just("r"),
    model=st.just("m"),
    blocks=st.lists(st.integers(0, 20), max_size=12, unique=True).map(tuple),
    block_tokens=st.integers(1, 64),
    prompt_tokens=st.integers(0, 1000),
    session=st.none() | st.text(max_size=3),
)
fleets = st.lists(
    st.builds(
        PodState,
        name=st.sampled_from("abcdef"),
        in_flight=st.integers(0, 50),
        in_flight_prefill_tokens=st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda pod: pod.name,
)
outcomes = st.builds(
    Outcome,
    ttft_s=st.none() | st.floats(0, 100),
    prompt_tokens=st.none() | st.integers(0, 2000),
    cached_tokens=st.none() | st.integers(0, 2000),
)
histories = st.lists(st.tuples(requests, fleets, outcomes, st.booleans()), max_size=8)


def cold(number: int, session: str | None = None) -> RouteRequest:
    """Return a prompt that shares nothing with any other."""
    return RouteRequest(f"r{number}", "m", (number * 2, number * 2 + 1), 64, 150, session)


def test_every_name_has_its_policy():
    """The command line knows the names alone."""
    assert tuple(POLICIES) == NAMES


@every_policy
@settings(max_examples=20)
@given(history=histories)
def test_a_policy_chooses_an_offered_pod_for_a_known_reason_whatever_it_lived_through(
    name, history
):
    """The chosen pod is among the candidates, they among the offered; no cost is not a number."""
    policy = make_policy(name, seed=1)
    for now, (request, pods, outcome, lost) in enumerate(history):
        decision = policy.choose(request, pods, float(now))

        offered = {pod.name for pod in pods}
        considered = {candidate.pod for candidate in decision.candidates}
        assert decision.pod in considered
        assert considered <= offered
        assert decision.policy == name
        assert decision.reason in get_args(Reason)
        assert (decision.reason == "only") == (len(decision.candidates) == 1)
        assert 0 <= decision.matched_tokens <= request.prompt_tokens
        assert all(candidate.cost == candidate.cost for candidate in decision.candidates)

        policy.placed(request, decision.pod, float(now))
        policy.finished(request, decision, outcome, float(now))
        if lost:
            policy.forget(decision.pod)


refusals = st.builds(Outcome, end=st.just("answered"), status=st.just(400))


@pytest.mark.parametrize(
    "name", ["cache_aware", "prefix_estimate", "prefix_precise", "prefix_cost"]
)
@settings(max_examples=30)
@given(history=st.lists(st.tuples(requests, fleets, outcomes | refusals), min_size=1, max_size=12))
def test_what_another_policy_chose_teaches_as_much_as_an_own_choice(name, history):
    """What pods hold, how fast they work, what they were sent: but for who pays rent."""
    chooses, witness = make_policy(name, seed=1), make_policy(name, seed=1)
    everywhere = [PodState(pod) for pod in "abcdef"]
    for policy in (chooses, witness):
        policy.choose(cold(0), everywhere, 0.0)
    for now, (asked, pods, outcome) in enumerate(history):
        request = msgspec.structs.replace(asked, id=str(now))
        decision = chooses.choose(request, pods, float(now))
        before = next(pod for pod in pods if pod.name == decision.pod)
        for policy in (chooses, witness):
            policy.placed(request, decision.pod, float(now))
        chooses.finished(request, decision, outcome, now + 0.5)
        witness.witnessed(request, before, outcome, now + 0.5)

    for request, *_ in history:
        mine, others = (
            policy.choose(request, everywhere, 100.0).candidates for policy in (chooses, witness)
        )
        for one, other in zip(mine, others, strict=True):
            assert (one.pod, one.matched_tokens) == (other.pod, other.matched_tokens)
            for term in ("prefill_s", "beside_s", "weight"):
                assert one.terms.get(term, 0.0) == pytest.approx(other.terms.get(term, 0.0))


@every_policy
@settings(max_examples=20)
@given(history=histories)
def test_the_same_seed_and_the_same_history_give_the_same_decisions(name, history):
    """Nothing but the seed is drawn from."""

    def decisions():
        policy = make_policy(name, seed=7)
        for now, (request, pods, _outcome, _lost) in enumerate(history):
            decision = policy.choose(request, pods, float(now))
            policy.placed(request, decision.pod, float(now))
            yield decision

    assert list(decisions()) == list(decisions())


@every_policy
def test_cold_traffic_is_spread_over_idle_pods(name):
    """χ² over 2,000 unrelated prompts on four idle pods: no pod is preferred (p > 0.001)."""
    policy = make_policy(name, seed=3)
    pods = [PodState(f"10.0.0.{i}:8000") for i in range(4)]
    counts = dict.fromkeys((pod.name for pod in pods), 0)
    for number in range(2000):
        decision = policy.choose(cold(number, f"user-{number}"), pods, 0.0)
        counts[decision.pod] += 1

    chi_squared = sum((count - 500) ** 2 / 500 for count in counts.values())

    assert chi_squared < 16.27  # three degrees of freedom, 0.1 %


@every_policy
def test_a_policy_is_not_drawn_to_the_first_or_the_last_of_equals_under_regular_bursts(name):
    """Bursts of three on four pods: rotation would favour some pods, chance and turns do not."""
    policy = make_policy(name, seed=5)
    firsts = dict.fromkeys("abcd", 0)
    for burst in range(400):
        pods = [PodState(pod) for pod in "abcd"]
        for place in range(3):
            decision = policy.choose(cold(burst * 3 + place, f"{burst}/{place}"), pods, 0.0)
            chosen = next(pod for pod in pods if pod.name == decision.pod)
            chosen.in_flight += 1
            firsts[decision.pod] += place == 0

    assert all(60 <= count <= 140 for count in firsts.values())


@every_policy
def test_a_whole_workload_leaves_no_pod_idle(name):
    """40 shared prompts, 16 sessions at once: the busiest pod does less than 1.4 of the mean."""
    assert play(make_policy(name, seed=1)).busiest < 1.4


def test_prefix_policies_reach_the_ceiling_and_the_others_do_not():
    """Where all fits: within half a percent of an endless cache, as against more than two."""
    played = {name: play(make_policy(name, seed=1)) for name in POLICIES}

    for name in ("prefix_estimate", "prefix_cost"):
        assert played[name].hit_rate > played[name].ceiling - 0.005
    for name in ("random", "round_robin", "power_of_two"):
        assert played[name].hit_rate < played[name].ceiling - 0.02
    assert played["prefix_cost"].mean_ttft < 0.6 * played["round_robin"].mean_ttft


def test_where_caches_are_tight_the_default_still_hits_more_than_hashing():
    """Four caches that together hold the shared prompts and little else."""
    default = play(make_policy(DEFAULT, seed=1), capacity=1000)
    hashing = play(make_policy("chwbl", seed=1), capacity=1000)

    assert default.hit_rate > hashing.hit_rate + 0.03
    assert default.busiest < 1.25


def test_one_prompt_for_all_does_not_go_to_one_pod():
    """The trap of hit rates: thirty identical prompts on one pod are all hits, and a bad choice."""
    played = play(make_policy(DEFAULT, seed=1), groups=1, at_once=64)

    assert played.busiest < 1.1


def test_an_unknown_policy_is_refused_with_the_names_there_are():
    """The sentence names what was asked and what may be asked."""
    with pytest.raises(InputError, match=r"policy: expected one of random, .*, got 'prefx'"):
        make_policy("prefx", seed=0)
