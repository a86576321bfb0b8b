"""Cache against load, in seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.policies.decision import Outcome, RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.policies.prefix_cost import PrefixCost
from kvbench.policies.rates import Rates
from kvbench.seeds import rng


def request(*blocks: int, rest: int = 10) -> RouteRequest:
    """Return a request of these blocks of 64 tokens, and a rest."""
    return RouteRequest("r", "m", blocks, 64, 64 * len(blocks) + rest)


def warm(pod: str, *blocks: int, others: str = "cold") -> PrefixCost:
    """Return a policy that has sent these blocks to `pod`, with the prior's rates."""
    policy = PrefixCost(rng(0))
    policy.choose(request(*blocks), [PodState(pod), PodState(others)], 0.0)
    policy.placed(request(*blocks), pod, 0.0)
    return policy


LONG = tuple(range(100))  # 6,400 tokens, 0.64 s of prefill by the prior


@pytest.mark.parametrize(
    ("waiting", "in_flight", "expected"),
    [
        pytest.param(0, 0, "warm", id="an idle warm pod wins"),
        pytest.param(8_900, 1, "warm", id="waiting 0.89 s is cheaper than 0.64 s and 0.26"),
        pytest.param(9_200, 1, "cold", id="waiting 0.92 s is dearer"),
        pytest.param(0, 100, "warm", id="a hundred beside it cost 0.15 s, less than 0.9"),
        pytest.param(0, 700, "cold", id="seven hundred beside it cost 1.05 s"),
    ],
)
def test_a_hot_prefix_spills_exactly_when_that_is_cheaper(waiting, in_flight, expected):
    """The figures are the prior's: 0.1 ms a token, 1 ms a neighbour, 10 own tokens uncached.

    The warm pod was sent 32,768 + 6,410 tokens of late and the cold one 32,768, less what faded:
    the cold one's churn is 0.91, so that a token that it adds weighs 0.41 beside its own second.
    """
    policy = warm("warm", *LONG)
    pods = [PodState("warm", in_flight, waiting), PodState("cold")]

    assert policy.choose(request(*LONG), pods, 0.0).pod == expected


def test_a_hot_prefix_gets_a_second_copy_when_staying_has_cost_as_much():
    """Each of the 8 more beside it costs it 1 ms at home, and others as much."""
    policy = warm("home", *LONG)
    pods = [PodState("home", 16), PodState("cold", 8)]
    stayed = []
    while (decision := policy.choose(request(*LONG), pods, 0.0)).pod == "home":
        stayed.append(decision)

    home, cold = stayed[0].candidates
    assert len(stayed) == int((cold.cost - home.cost) / (8 * 0.002)) + 1
    assert decision.chosen == min(decision.candidates, key=lambda one: one.cost)
    paid = [one.terms["rent_s"] for one in decision.candidates]
    assert paid == [0.0, pytest.approx(-8 * 0.002 * len(stayed))]
    assert decision.candidates[1].cost == pytest.approx(cold.cost + paid[1])
    assert all(one.terms["rent_s"] == 0.0 for one in stayed[0].candidates)
    assert policy.choose(request(*LONG), pods, 0.0).pod == "home", "the next is paid for again"


def test_where_no_first_token_waits_for_others_no_copy_is_bought():
    """What is paid is learned: here a request beside it costs a hundredth of a millisecond."""
    rates = Rates()
    rates.beside = 1e-5
    policy = PrefixCost(rng(0), rates=rates)
    policy.choose(request(*LONG), [PodState("home"), PodState("cold")], 0.0)
    policy.placed(request(*LONG), "home", 0.0)
    pods = [PodState("home", 16), PodState("cold", 8)]

    chosen = [policy.choose(request(*LONG), pods, 0.0) for _ in range(1000)]

    assert {one.pod for one in chosen} == {"home"}
    assert chosen[-1].candidates[1].terms["rent_s"] == pytest.approx(-999 * 8 * 2e-5)


def test_a_pod_that_is_seldom_less_busy_is_seldom_paid_for_a_copy():
    """Pods that are even in the long run take turns: a copy on one would save its turns only."""
    one = PodState("one", 8)
    two, three = PodState("two", 16), PodState("three", 16)
    turns, alone = warm("home", *LONG, others="one"), warm("home", *LONG, others="one")
    asked = {"turns": 0, "alone": 0}
    home = PodState("home", 16)
    for policy, name in ((turns, "turns"), (alone, "alone")):
        pods = [home, one, two, three]
        while policy.choose(request(*LONG), pods, 0.0).pod == "home":
            asked[name] += 1
            if name == "turns":  # another one is less busy the next time
                pods = [home, *(PodState(pod.name, 24 - pod.in_flight) for pod in pods[1:3]), three]

    assert asked["turns"] == pytest.approx(2 * asked["alone"], abs=2)


@pytest.mark.parametrize("in_flight", [4, 8])
def test_staying_with_a_pod_that_is_no_busier_is_never_paid_for(in_flight):
    """However many ask for what it holds."""
    policy = warm("home", *LONG)
    pods = [PodState("home", in_flight), PodState("cold", 8)]

    assert {policy.choose(request(*LONG), pods, 0.0).pod for _ in range(2000)} == {"home"}


def test_later_turns_pay_for_what_their_conversation_began_with():
    """Of 6,400 tokens that conversations begin with, and 64 more that each has for itself."""
    policy = warm("home", *LONG)
    pods = [PodState("home", 16), PodState("cold", 8)]
    idle = [PodState("home"), PodState("cold")]
    for number in range(1000, 1010):
        policy.choose(request(*LONG, number), idle, 0.0)
        policy.placed(request(*LONG, number), "home", 0.0)
        policy.choose(request(*LONG, number), pods, 0.0)

    paid = policy.choose(request(*LONG), pods, 0.0).candidates[1].terms["rent_s"]
    assert paid == pytest.approx(-10 * 8 * 0.002, rel=0.1), "what fades meanwhile is little"


def test_each_beginning_is_paid_for_by_those_who_ask_for_it():
    """A thousand prompts that have nothing in common pay for no copy, though each stays once."""
    policy = PrefixCost(rng(0))
    pods = [PodState("home", 16), PodState("cold", 8)]
    chosen = set()
    for number in range(1000):
        asked = request(*range(100 * number, 100 * number + 100))
        policy.choose(asked, pods, 0.0)
        policy.placed(asked, "home", 0.0)
        chosen.add(policy.choose(asked, pods, 0.0).pod)

    assert chosen == {"home"}


def test_once_spilled_both_pods_are_warm():
    """The second pod is remembered from the placement on."""
    policy = warm("a", *LONG)
    policy.placed(request(*LONG), "b", 1.0)

    decision = policy.choose(request(*LONG), [PodState("a", 9), PodState("b", 1)], 2.0)

    assert (decision.pod, decision.reason, decision.matched_tokens) == ("b", "prefix", 6400)


def test_a_cold_prompt_goes_to_the_pod_with_the_least_to_do():
    """Waiting tokens and requests beside it, in one figure."""
    policy = PrefixCost(rng(0))
    pods = [PodState("a", 1, 900), PodState("b", 3, 0), PodState("c", 20, 0)]

    decision = policy.choose(request(1, 2), pods, 0.0)

    assert (decision.pod, decision.reason) == ("b", "load")


def test_a_burst_of_one_new_prompt_shares_the_first_pod_until_that_costs_more():
    """Thirty at once: one computes, those behind it wait for that, and later ones spill."""
    policy = PrefixCost(rng(0))
    pods = [PodState(name) for name in "abcd"]
    chosen = []
    for _ in range(30):
        decision = policy.choose(request(*LONG, rest=200), pods, 0.0)
        policy.placed(request(*LONG, rest=200), decision.pod, 0.0)
        pod = next(pod for pod in pods if pod.name == decision.pod)
        pod.in_flight += 1
        pod.in_flight_prefill_tokens += 6600 - decision.matched_tokens
        chosen.append(decision.pod)

    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 4


def test_candidates_say_what_their_cost_is_made_of():
    """The terms in seconds add up to the cost, and the least cost was chosen."""
    decision = warm("a", *LONG, others="b").choose(
        request(*LONG), [PodState("a", 2, 300), PodState("b", 1, 5)], 0.0
    )

    for candidate in decision.candidates:
        seconds = sum(term for name, term in candidate.terms.items() if name.endswith("_s"))
        assert candidate.cost == pytest.approx(seconds)
    first = decision.candidates[0]
    assert first.terms["prefill_s"] == pytest.approx(1e-4 * (300 + 10))
    assert first.terms["others_s"] == pytest.approx(1e-4 * 10 * (1 + first.terms["weight"]))
    assert first.terms["beside_s"] == pytest.approx(1e-3 * 2)
    assert decision.chosen == min(decision.candidates, key=lambda one: one.cost)
    assert decision.expected_s == decision.chosen.terms["prefill_s"]


def test_conversations_that_come_one_after_the_other_do_not_share_one_cache():
    """They have 256 tokens in common and 6,000 of their own; no pod is ever busy."""
    policy = PrefixCost(rng(0))
    pods = [PodState(name) for name in "abcd"]
    work = dict.fromkeys("abcd", 0)
    homes: dict[int, set[str]] = {}
    for turn in range(3):
        for session in range(60):
            own = range(1000 * (session + 1), 1000 * (session + 1) + 94 + turn)
            asked = RouteRequest(f"{session}/{turn}", "m", (1, 2, 3, 4, *own), 64, 6300 + 64 * turn)
            decision = policy.choose(asked, pods, 0.0)
            policy.placed(asked, decision.pod, 0.0)
            work[decision.pod] += asked.prompt_tokens - decision.matched_tokens
            homes.setdefault(session, set()).add(decision.pod)

    assert max(work.values()) < 1.05 * sum(work.values()) / 4
    assert all(len(pods) == 1 for pods in homes.values()), "a conversation stays where it began"


@pytest.mark.parametrize(("in_flight", "surplus"), [(0, 0.0), (4, 1.0), (16, 4.0)])
def test_what_is_computed_again_costs_more_where_more_is_in_flight(in_flight, surplus):
    """The fleet's mean counts, as far as a pod's churn is above the least: there it is as ever.

    One pod was sent 6,410 tokens: its churn² is larger than the other's by 0.364.
    """
    policy = warm("busy", *LONG, others="idle")
    pods = [PodState("busy", in_flight), PodState("idle", in_flight)]

    busy, idle = policy.choose(request(7, 8), pods, 0.0).candidates

    alone = warm("busy", *LONG, others="idle").choose(
        request(7, 8), [PodState("busy"), PodState("idle")], 0.0
    )
    plain = [one.terms["weight"] for one in alone.candidates]
    assert 2 * (plain[0] - plain[1]) == pytest.approx(0.364, abs=0.001)
    assert idle.terms["weight"] == pytest.approx(plain[1])
    assert busy.terms["weight"] == pytest.approx(plain[0] + surplus * 2 * (plain[0] - plain[1]))


def test_a_cold_prompt_goes_where_less_was_sent_though_one_more_is_in_flight():
    """Requests come and go; where it goes, later ones will follow."""
    policy = warm("busy", *LONG, others="idle")
    pods = [PodState("busy", 16), PodState("idle", 17)]

    assert policy.choose(request(*range(500, 600)), pods, 0.0).pod == "idle"


def test_pods_whose_caches_are_emptied_together_are_not_new_to_each_other():
    """They are forgotten one after the other, with a request in between; then it is as ever."""
    policy = PrefixCost(rng(0))
    pods = [PodState("a"), PodState("b"), PodState("c")]
    before = policy.choose(request(1), pods, 0.0)
    for pod in pods:
        policy.forget(pod.name)
        policy.choose(request(2), pods, 1.0)

    after = policy.choose(request(3), pods, 1.1)

    weights = [one.terms["weight"] for one in after.candidates]
    assert weights == pytest.approx([one.terms["weight"] for one in before.candidates])


def test_a_pod_that_joins_late_is_warmed_up_slowly():
    """Ten times the cost at first, three times after ten seconds, as any other after thirty."""
    policy = PrefixCost(rng(0))
    old = [PodState("a", 2, 9000), PodState("b", 2, 9000)]
    policy.choose(request(1), old, 0.0)
    pods = [*old, PodState("new")]

    def weights(now):
        return [one.terms["weight"] for one in policy.choose(request(1), pods, now).candidates]

    assert weights(100.0) == pytest.approx([0.5, 0.5, 9.5])
    assert weights(110.0) == pytest.approx([0.5, 0.5, 2.5])
    assert weights(131.0) == pytest.approx([0.5, 0.5, 0.5])
    busy = [PodState("a", 2, 90_000), PodState("b", 2, 90_000), PodState("newer")]
    assert policy.choose(request(1), busy, 131.0).pod == "newer", "the others are busier than that"


def test_pods_that_are_forgotten_together_are_not_new_to_each_other():
    """After all caches were reset the fleet is as even as at the start."""
    policy = PrefixCost(rng(0))
    pods = [PodState("a"), PodState("b")]
    policy.choose(request(1), pods, 0.0)
    for pod in pods:
        policy.forget(pod.name)

    weights = [one.terms["weight"] for one in policy.choose(request(1), pods, 1.0).candidates]

    assert weights == [0.5, 0.5]


def test_slow_pods_teach_that_a_prefix_is_worth_waiting_for():
    """At 500 tokens a second a hundred neighbours do not outweigh a cached prompt."""
    policy = warm("warm", *LONG)
    crowd = [PodState("warm", 700), PodState("cold")]
    assert policy.choose(request(*LONG), crowd, 0.0).pod == "cold"
    for tokens in range(50, 6450, 16):
        told = RouteRequest("r", "m", (), 64, tokens)
        decision = policy.choose(told, [PodState("cold")], 0.0)
        policy.finished(told, decision, Outcome(tokens / 500, tokens, 0), 0.0)

    assert policy.rates.prefill == pytest.approx(1 / 500, rel=0.05)
    assert policy.choose(request(*LONG), crowd, 0.0).pod == "warm"


def test_an_answer_without_times_or_counts_teaches_nothing():
    """Unknown is not zero."""
    rates = Rates()
    policy = PrefixCost(rng(0), rates=rates)
    decision = policy.choose(request(1), [PodState("a")], 0.0)
    for _ in range(20):
        policy.finished(request(1), decision, Outcome(), 0.0)

    assert (rates.base, rates.prefill, rates.beside) == (0.01, 1e-4, 1e-3)


@given(
    loads=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50_000)), min_size=2, max_size=6),
    chosen=st.integers(0, 5),
)
def test_more_load_never_makes_a_pod_more_attractive(loads, chosen):
    """Adding work to a pod that was not chosen leaves the choice as it was."""
    policy = warm("p0", *LONG)
    pods = [PodState(f"p{i}", *load) for i, load in enumerate(loads)]
    before = policy.choose(request(*LONG), pods, 0.0)
    loser = pods[chosen % len(pods)]
    if loser.name != before.pod:
        loser.in_flight += 3
        loser.in_flight_prefill_tokens += 500

        costs = {c.pod: c.cost for c in policy.choose(request(*LONG), pods, 0.0).candidates}

        assert costs[before.pod] <= costs[loser.name]


LOADS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 100, 5000])), min_size=1, max_size=6
)


@given(LOADS, st.integers(0, 2**32))
def test_the_cheapest_is_chosen_and_of_several_the_best_matched(loads, seed):
    """What a candidate costs is what its terms add up to."""
    policy = PrefixCost(rng(seed))
    pods = [PodState(f"p{at}", *load) for at, load in enumerate(loads)]
    policy.placed(request(1, 2), "p0", 0.0)

    decision = policy.choose(request(1, 2), pods, 0.0)

    ranks = {one.pod: (one.cost, -one.matched_tokens) for one in decision.candidates}
    assert ranks[decision.pod] == min(ranks.values())
    parts = ("prefill_s", "beside_s", "others_s", "rent_s")
    for one in decision.candidates:
        assert one.cost == pytest.approx(sum(one.terms[part] for part in parts))
    assert decision.chosen == next(one for one in decision.candidates if one.pod == decision.pod)


def test_a_prompt_that_was_refused_counts_no_more_as_sent():
    """Whatever was sent meanwhile: its pod is where it was, and the other is not concerned."""
    policy, pods = PrefixCost(rng(0)), [PodState("one"), PodState("two")]
    wrong = RouteRequest("wrong", "m", (7,), 64, 100_000)
    decision = policy.choose(wrong, pods, 0.0)
    before = dict(policy._turnover._sent)
    policy.placed(wrong, decision.pod, 0.0)
    other = next(pod.name for pod in pods if pod.name != decision.pod)
    policy.placed(RouteRequest("right", "m", (8,), 64, 50_000), other, 1.0)
    sent = policy._turnover._sent[other]

    policy.finished(wrong, decision, Outcome(end="answered", status=400), 2.0)

    assert policy._turnover._sent[decision.pod] == pytest.approx(before[decision.pod])
    assert policy._turnover._sent[other] == sent > before[other]
