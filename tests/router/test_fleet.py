"""What requests share."""

from __future__ import annotations

import json

import pytest
from router.fakes import CHAT, House, ask, chat, run

from kvbench.errors import InputError
from kvbench.policies.decision import RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.router.fleet import Policies


def usage(tokens: int) -> bytes:
    """Return a whole answer of so many tokens."""
    counts = {"prompt_tokens": 900, "completion_tokens": tokens, "total_tokens": 900 + tokens}
    return json.dumps({"usage": counts | {"prompt_tokens_details": {"cached_tokens": 0}}}).encode()


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


def test_policies_learn_what_came_of_requests_that_chose_another():
    """What was refused is not there; how long a prompt took is known: the header takes nothing."""

    async def case():
        async def judges(call):
            if b"wrong" in call.body:
                await call.answer(b"{}", 400)
            else:
                await call.answer(usage(1))

        settings = {"policy": "prefix_cost", "allow_policy_header": True}
        async with House(judges, judges, **settings) as house:
            ours = house.router.fleet.policies.default
            at_first = ours.rates.base
            wanted = "x-kvbench-policy: round_robin"
            for text in ("wrong " * 500, "right " * 500):
                asked = chat(text, max_tokens=1)
                first = await ask(house.url, "POST", CHAT, asked, wanted)
                second = await ask(house.url, "POST", CHAT, asked)
                predicted = int(second.headers["x-kvbench-predicted-tokens"])
                assert (predicted > 400) == (first.status == 200)
            assert ours.rates.base < at_first
            assert house.in_flight() == [(0, 0)] * 2

    run(case)


@pytest.mark.parametrize(("tokens", "learns"), [(0, True), (1, True), (2, False), (10, False)])
def test_an_answer_in_one_piece_teaches_how_fast_a_pod_is_if_it_is_one_token(tokens, learns):
    """Of a longer one nobody knows when it began."""

    async def case():
        async def answers(call):
            await call.answer(usage(tokens))

        async with House(answers, policy="prefix_cost") as house:
            rates = house.router.fleet.policies.default.rates
            at_first = rates.base, rates.prefill
            await ask(house.url, "POST", CHAT, chat("hi " * 900))
            assert ((rates.base, rates.prefill) != at_first) == learns
            (entry,) = house.router.fleet.account.journal.latest(1)
            assert (entry.ttft_s is not None) == learns
            count = await house.metric(
                "kvbench_router_time_to_first_token_seconds_count", pod=house.pods[0].name
            )
            assert count == 0  # which is of streams

    run(case)
