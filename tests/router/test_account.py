"""The books: regret, causes, counts, and what was learned."""

from __future__ import annotations

import pytest

from kvbench.clock import VirtualClock
from kvbench.errors import InputError
from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    encode_batch,
    published_frames,
)
from kvbench.kvcache.ledger import Ledger
from kvbench.policies.decision import Candidate, Decision, Outcome, RouteRequest
from kvbench.policies.pod_state import PodState
from kvbench.router.account import Account, Evictions
from kvbench.router.books import WatchedIndex
from kvbench.router.journal import Journal
from kvbench.router.meters import Meters
from kvbench.router.tokens import PromptTokens
from kvbench.text.tokenizer import SHIPPED

SIZE = 4
IDS = list(range(41))  # ten blocks, and a token
HASHES = tuple(block_hashes(IDS, SIZE))


class Desk:
    """An account over two pods, of which `a` holds so many blocks of the prompt."""

    def __init__(self, held=10, pods="ab"):
        self.ledger = Ledger(lambda: 5.0)
        self.tokens, self.meters = PromptTokens(SHIPPED), Meters()
        self.tokens.learn({"m": {}})
        index = WatchedIndex(self.ledger, VirtualClock())
        self.account = Account(index, self.tokens, self.meters, Journal(), {}, utc=lambda: 5.0)
        self.ledger.observer = self.account.evictions
        self.numbers = dict.fromkeys(pods, 0)
        self.pods = [PodState(name) for name in pods]
        for name in pods:
            self.ledger.follow(name, can_replay=False)
            self.hear(name)
        self.hear("a", self.block(*range(held)))

    def block(self, *blocks):
        """Return the event of blocks of the prompt that follow each other."""
        first = blocks[0] if blocks else 0
        parent = first or None  # block n is called n + 1
        tokens = tuple(IDS[first * SIZE : (first + len(blocks)) * SIZE])
        return BlockStored(tuple(n + 1 for n in blocks), parent, tokens, SIZE)

    def hear(self, pod, *events):
        """Take a batch of a pod."""
        (stream,) = self.ledger.streams[pod]
        payload = encode_batch(EventBatch(1.0, events))
        self.ledger.published(stream, published_frames("", self.numbers[pod], payload))
        self.numbers[pod] += 1

    def decide(self, pod="a", predicted=40, *, exact=True):
        """Take note of a decision; return request and decision."""
        known = {"hashes": HASHES, "hash_tokens": SIZE} if exact else {}
        request = RouteRequest("r", "m", (), 4, len(IDS), **known)
        candidates = tuple(
            Candidate(one.name, predicted if one.name == pod else 0, 0.0, {}) for one in self.pods
        )
        decision = Decision(pod, "p", "prefix", predicted, candidates)
        self.account.decided(request, decision, self.pods, 0.0)
        return request, decision

    def finish(self, request, decision, cached, prompt=41, ttft=None):
        """Take note of the end; return the entry."""
        outcome = Outcome(ttft, prompt, cached, served=True)
        self.account.finished(request, decision, outcome, 1.0)
        return self.account.journal.latest(1)[0]

    def value(self, name, **labels):
        """Return a sample."""
        return self.meters.registry.get_sample_value(f"kvbench_router_{name}", labels)


def test_regret_is_the_expected_time_given_away():
    """The other pod has nothing of the prompt, and the one that has it is busy."""
    desk = Desk(held=10)
    desk.account.rates.base, desk.account.rates.prefill, desk.account.rates.beside = 0.0, 0.01, 0.0
    desk.pods[0].in_flight_prefill_tokens = 100
    desk.decide("a")
    desk.decide("b", 0)
    regrets = [entry.regret_s for entry in reversed(desk.account.journal.latest(2))]
    assert regrets == [pytest.approx(0.6), 0.0]
    assert desk.value("regret_seconds_sum", policy="p") == pytest.approx(0.6)


def test_requests_under_way_with_the_same_id_have_an_outcome_each():
    """It is the client that chooses the id."""
    desk = Desk()
    first, second = desk.decide(predicted=40), desk.decide(predicted=36)
    desk.finish(*first, cached=40)
    desk.finish(*second, cached=32)
    entries = desk.account.journal.since(0, 9)
    assert [(one.predicted_tokens, one.cached_tokens) for one in entries] == [(40, 40), (36, 32)]


def test_without_the_true_state_of_every_pod_there_is_no_regret():
    """One of them is degraded."""
    desk = Desk()
    desk.numbers["b"] += 1
    desk.hear("b")
    desk.decide()
    (entry,) = desk.account.journal.latest(1)
    assert entry.regret_s is None
    assert {one.pod: one.trust for one in entry.candidates} == {"a": "exact", "b": "degraded"}


def test_what_was_delivered_as_predicted_has_no_cause():
    """And is counted as such."""
    desk = Desk()
    entry = desk.finish(*desk.decide(), cached=40)
    assert (entry.cause, entry.number) == ("none", 1)
    assert desk.value("predictions_total", cause="none") == 1


def test_a_block_evicted_between_decision_and_answer_is_the_cause():
    """The pod has computed it anew since; that it was gone is remembered."""
    desk = Desk()
    request, decision = desk.decide()
    desk.hear("a", BlockRemoved((4,)), BlockRemoved((5,)))
    desk.hear("a", desk.block(3, 4))
    entry = desk.finish(request, decision, cached=12)
    assert entry.cause == "evicted"
    assert desk.value("prediction_error_tokens_total", cause="evicted", direction="less") == 28


def test_a_block_evicted_long_before_is_not():
    """The index knew; something else is wrong."""
    desk = Desk()
    desk.hear("a", BlockRemoved((4,)))
    desk.hear("a", desk.block(3))
    entry = desk.finish(*desk.decide(), cached=12)
    assert entry.cause == "other"


def test_a_copy_that_does_not_exist_is_believed_no_more():
    """The index is corrected by the pod's own word."""
    desk = Desk()
    desk.hear("a", desk.block(3))
    entry = desk.finish(*desk.decide(), cached=12)
    assert entry.cause == "duplicate"
    assert desk.ledger.match(HASHES, SIZE, ["a"]) == {"a": 3}


def test_what_was_promised_and_did_not_come_in_time_is_late():
    """The index had two blocks, the policy took ten for granted."""
    desk = Desk(held=2)
    assert desk.finish(*desk.decide(predicted=40), cached=8).cause == "late"


def test_a_prediction_without_tokens_is_an_estimate():
    """Right or wrong."""
    desk = Desk()
    assert desk.finish(*desk.decide(predicted=30, exact=False), cached=28).cause == "estimate"
    assert desk.value("prediction_error_tokens_total", cause="estimate", direction="less") == 2


def test_a_pod_that_counts_other_tokens_is_counted_and_given_up_in_the_end():
    """The model's tokens are another tokenizer's."""
    desk = Desk()
    for _ in range(3):
        assert desk.finish(*desk.decide(), cached=36, prompt=44).cause == "template"
    assert desk.value("miscounted_requests_total", model="m") == 3
    assert desk.tokens.models["m"].trouble is not None


def test_an_answer_without_counts_is_kept_and_not_compared():
    """Unknown is not zero."""
    desk = Desk()
    request, decision = desk.decide()
    desk.account.finished(request, decision, Outcome(), 1.0)
    (entry,) = desk.account.journal.latest(1)
    assert (entry.cause, entry.cached_tokens, entry.number) == (None, None, 1)


def test_rates_are_learned_whatever_the_policy():
    """From answers whose first token was seen."""
    desk = Desk()
    before = desk.account.rates.prefill
    for _ in range(40):
        desk.finish(*desk.decide("b", 0), cached=0, ttft=4.1)
    assert desk.account.rates.prefill > before


def test_shadows_follow_and_the_serving_one_stands_beside_them():
    """The second time the prompt is cached, on their pods as on ours."""
    desk = Desk()
    desk.account.shadow(["round_robin", "prefix_cost", "prefix_cost"], "p", 1)
    for _ in range(2):
        desk.finish(*desk.decide(), cached=40)
    prompt = desk.value("shadow_prompt_tokens_total", policy="round_robin", role="shadow")
    assert prompt == 2 * len(IDS)
    for policy, role, cached in (
        ("prefix_cost", "shadow", 40),
        ("round_robin", "shadow", 0),
        ("p", "serving", 40),
    ):
        found = desk.value("shadow_cached_tokens_total", policy=policy, role=role)
        assert (policy, found) == (policy, cached)


def test_shadows_count_what_was_served():
    """Neither what is under way nor what a pod refused."""
    desk = Desk()
    desk.account.shadow(["round_robin"], "p", 1)
    request, decision = desk.decide()
    desk.account.finished(request, decision, Outcome(), 1.0)
    desk.decide()
    for policy, role in (("round_robin", "shadow"), ("p", "serving")):
        for name in ("shadow_prompt_tokens_total", "shadow_time_to_first_token_seconds_count"):
            assert not desk.value(name, policy=policy, role=role)
    desk.finish(request, decision, cached=40)
    assert desk.value("shadow_prompt_tokens_total", policy="p", role="serving") == len(IDS)


def test_a_shadow_of_no_known_name_is_refused():
    """Before it follows anything."""
    with pytest.raises(InputError, match="policy: expected one of"):
        Desk().account.shadow(["nonsense"], "p", 1)


def test_evictions_are_remembered_by_pod_and_not_for_ever(monkeypatch):
    """Ranks of a pod are one pod; the oldest are forgotten."""
    monkeypatch.setattr("kvbench.router.account._MOST_EVICTED", 2)
    evictions = Evictions()
    for block in (1, 2, 3):
        evictions.removed("a rank 1", block, 0, evicted=True)
    evictions.removed("b", 9, 0, evicted=False)
    assert [evictions.since("a", block, 0) for block in (1, 2, 3)] == [False, True, True]
    assert not evictions.since("a", 2, 2)
    assert not evictions.since("b", 9, 0)
    evictions.forget("a")
    assert not evictions.since("a", 3, 0)
