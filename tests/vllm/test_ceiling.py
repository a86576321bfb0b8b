"""The ceiling against a real engine: one request at a time, on a pod that need not forget."""

import json
import os
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.oracle.ceiling import ceiling
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.build import build_plan
from kvbench.workload.distributions import Constant, Uniform
from kvbench.workload.plan import Plan, PlannedTurn
from kvbench.workload.render import Renderer
from kvbench.workload.spec import (
    PoissonArrival,
    PrefixLevel,
    Sessions,
    Subagents,
    Tools,
    UsersArrival,
    Workload,
)
from kvbench.workload.strategies import Append, DropOldest, Gist, GistRecent, Summary

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BLOCK = 32
WORKLOAD = Workload(
    name="real",
    prefixes=(
        PrefixLevel("tenant", 2, Constant(300)),
        PrefixLevel("system", 2, Uniform(20, 120)),
    ),
    sessions=Sessions(
        count=8,
        turns=Uniform(1, 4),
        user_tokens=Uniform(5, 60),
        answer_tokens=Uniform(1, 40),
        think=Uniform(0, 4),
    ),
    arrival=PoissonArrival(1.0),
)

AGENTS = replace(
    WORKLOAD,
    sessions=Sessions(
        count=3,
        turns=Constant(4),
        user_tokens=Uniform(5, 60),
        answer_tokens=Uniform(4, 20),
        tools=Tools(Uniform(0, 2), Uniform(20, 120), Constant(0.5)),
        subagents=Subagents(
            chance=0.7,
            turns=Constant(2),
            user_tokens=Uniform(5, 40),
            answer_tokens=Uniform(4, 20),
            count=Constant(2),
        ),
    ),
    arrival=UsersArrival(2),
)
CONTEXTS = [Append(), DropOldest(700), Gist(700, 500), GistRecent(700, 400, 200), Summary(700, 24)]


def ask(url: str, path: str, body: bytes) -> tuple[str, dict[str, object]]:
    """Send a streamed request; return the text of the answer, and its usage."""
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
    text, usage = "", {}
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text, usage


def play(
    url: str, plan: Plan, renderer: Renderer, salt: str | None = None
) -> list[tuple[int, int, int]]:
    """Send the turns one after the other; return (prompt, cached, completion) tokens of each."""
    path = "/v1/chat/completions" if plan.api == "chat" else "/v1/completions"
    answers: dict[str, str] = {}
    counted = []
    for turn in plan.turns:
        salt = salt or f"{plan.seed}-{plan.api}-{plan.history}"
        body = renderer.body(turn, "tiny", answers=answers, cache_salt=salt)
        text, usage = ask(url, path, body)
        answers[turn.answer_key] = text
        details = usage["prompt_tokens_details"]
        counted.append(
            (usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"])
        )
    return counted


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return the tokenizer of the model that the pods serve."""
    return Tokenizer.load(Path(os.environ["REAL_VLLM"]).parent / "model")


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_real_pod_hits_the_ceiling_turn_by_turn(real_pods, tokenizer, api):
    """Prompt tokens, cached tokens and generated tokens are those that were planned."""
    plan = build_plan(replace(WORKLOAD, api=api), seed=3)
    renderer = Renderer(plan, tokenizer)
    top = ceiling(plan, renderer, BLOCK)
    lengths = [turn.max_tokens for turn in plan.turns]
    expected = list(zip(top.prompt_tokens, top.cached_tokens, lengths, strict=True))
    assert play(real_pods[0], plan, renderer) == expected
    assert top.hit_rate > 0.5


@pytest.mark.parametrize("context", CONTEXTS, ids=[context.kind for context in CONTEXTS])
def test_a_real_pod_hits_the_ceiling_of_agents_whatever_they_drop(real_pods, tokenizer, context):
    """Tools, sub-agents that fork and join, users in a closed loop, and a window."""
    plan = build_plan(replace(AGENTS, context=context), seed=5)
    renderer = Renderer(plan, tokenizer)
    top = ceiling(plan, renderer, BLOCK)
    lengths = [turn.max_tokens for turn in plan.turns]
    expected = list(zip(top.prompt_tokens, top.cached_tokens, lengths, strict=True))
    assert play(real_pods[0], plan, renderer, f"agents-{context.kind}") == expected
    assert (context.kind == "append") == (sum(t.dropped_tokens for t in plan.turns) == 0)


def test_a_real_pod_caches_what_it_generated_but_for_the_last_token(real_pods, tokenizer):
    """Sent as token ids, a repeated answer hits the blocks that generating it left behind."""
    plan = build_plan(replace(WORKLOAD, api="completions", history="answers"), seed=4)
    top = ceiling(plan, None, BLOCK)
    answers: dict[str, list[int]] = {}
    counted = []
    for turn in plan.turns:
        ids = [i for part in parts(turn, answers, Renderer(plan, tokenizer)) for i in part]
        body = {"model": "tiny", "prompt": ids, "max_tokens": turn.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "cache_salt": "generated"}
        request = urllib.request.Request(
            f"{real_pods[0]}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        answers[turn.answer_key] = answer["choices"][0]["token_ids"]
        counted.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counted == list(top.cached_tokens)


def parts(turn: PlannedTurn, answers: dict[str, list[int]], renderer: Renderer) -> list[list[int]]:
    """Return the prompt of a turn with the generated tokens in the place of planned answers."""
    return [
        answers.get(segment.key) or list(renderer.composer.ids(segment.key, segment.tokens))
        for message in turn.messages
        for segment in message.segments
    ]
