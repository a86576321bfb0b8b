"""The ceiling equals what a cache of every block of every earlier prompt would hit."""

from __future__ import annotations

from array import array

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.oracle.ceiling import ceiling
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.build import build_plan
from kvbench.workload.hash_rows import HashRow
from kvbench.workload.plan import Message, Plan, PlannedTurn, Segment
from kvbench.workload.render import Renderer
from kvbench.workload.trace import read_trace

SHIPPED = Tokenizer.load()
BLOCK_SIZES = st.sampled_from([1, 4, 16, 32])


def blocks(ids, size):
    """The chain of a prompt's full blocks: each known by all tokens up to its end."""
    raw = array("I", ids).tobytes()  # bytes are copied and hashed much faster than a tuple is
    return [raw[: 4 * (i + size)] for i in range(0, len(ids) - size + 1, size)]


def hits(chain, cache, tokens, size):
    """Tokens of the longest run of cached blocks, the last token left out."""
    count = 0
    while count < (tokens - 1) // size and chain[count] in cache:
        count += 1
    return count * size


def brute_force(prompts, size, generated=None):
    """Hits of an endless cache, from tokens: prompts in order, each with what it generated."""
    cache: set[bytes] = set()
    cached = []
    for i, ids in enumerate(prompts):
        cached.append(hits(blocks(ids, size), cache, len(ids), size))
        answer = generated[i][:-1] if generated else []
        cache.update(blocks([*ids, *answer], size))
    return cached


@given(workload=fakes_workload.workloads(), size=BLOCK_SIZES, seed=st.integers(0, 50))
def test_the_ceiling_equals_brute_force_over_tokens(workload, size, seed):
    """On whole plans, template included, at every block size."""
    plan = build_plan(workload, seed)
    renderer = Renderer(plan, SHIPPED)
    prompts = [list(renderer.prompt_ids(turn)) for turn in plan.turns]
    top = ceiling(plan, renderer, size)
    assert top.prompt_tokens == tuple(map(len, prompts))
    expected = brute_force(prompts, size)
    if size >= 16:
        assert list(top.cached_tokens) == expected
    else:  # two texts may begin with the same few words by chance, and small blocks see it
        pairs = zip(top.cached_tokens, expected, strict=True)
        assert all(planned <= found <= planned + 8 for planned, found in pairs)
    assert top.hit_rate == sum(top.cached_tokens) / sum(top.prompt_tokens)


@given(
    workload=fakes_workload.workloads(api="chat", history="answers"), size=st.sampled_from([16, 32])
)
def test_real_answers_count_but_for_their_last_token(workload, size):
    """Their blocks are in the cache before they are ever sent."""
    plan = build_plan(workload, 1)
    renderer = Renderer(plan, SHIPPED)
    generated = [renderer.composer.ids(f"real/{t.index}", t.max_tokens) for t in plan.turns]
    answers = {
        turn.answer_key: SHIPPED.decode(ids)
        for turn, ids in zip(plan.turns, generated, strict=True)
    }
    prompts = [SHIPPED.encode_chat(renderer.messages(turn, answers)) for turn in plan.turns]
    assert list(ceiling(plan, renderer, size).cached_tokens) == brute_force(
        prompts, size, generated
    )


def but_for_chance(law, workload, size) -> bool:
    """Return whether a law of a plan holds in one of five draws of its words.

    Of texts of a single word two may be the same by chance, and are hit then; not in every draw.
    """
    return any(law(build_plan(workload, seed), size) for seed in range(1, 6))


@given(workload=fakes_workload.agents(), size=st.sampled_from([16, 32]))
def test_whatever_clients_do_the_ceiling_equals_brute_force(workload, size):
    """Tools, sub-agents, reasoning, windows, users."""

    def law(plan: Plan, size: int) -> bool:
        renderer = Renderer(plan, SHIPPED)
        prompts = [list(renderer.prompt_ids(turn)) for turn in plan.turns]
        planned = list(ceiling(plan, renderer, size).cached_tokens)
        found = brute_force(prompts, size)
        assert all(least <= most for least, most in zip(planned, found, strict=True))
        return planned == found

    assert but_for_chance(law, workload, size)


@given(
    workload=fakes_workload.agents(api="chat", history="answers"), size=st.sampled_from([16, 32])
)
def test_whatever_clients_do_real_answers_count(workload, size):
    """Reasoning comes first, and is hit where it is repeated."""

    def law(plan: Plan, size: int) -> bool:
        renderer = Renderer(plan, SHIPPED)
        words = renderer.composer.ids
        thoughts = [words(f"thought/{t.index}", t.reasoning_tokens) for t in plan.turns]
        texts = [words(f"real/{t.index}", t.max_tokens - t.reasoning_tokens) for t in plan.turns]
        answers = {}
        for turn, thought, text in zip(plan.turns, thoughts, texts, strict=True):
            answers[turn.answer_key] = SHIPPED.decode(text)
            answers[turn.reasoning_key] = SHIPPED.decode(thought)
        generated = [[*a, *b] for a, b in zip(thoughts, texts, strict=True)]
        prompts = [SHIPPED.encode_chat(renderer.messages(turn, answers)) for turn in plan.turns]
        planned = list(ceiling(plan, renderer, size).cached_tokens)
        found = brute_force(prompts, size, generated)
        assert all(least <= most for least, most in zip(planned, found, strict=True))
        return planned == found

    assert but_for_chance(law, workload, size)


@given(workload=fakes_workload.workloads(), size=BLOCK_SIZES)
def test_without_a_renderer_the_template_is_left_out(workload, size):
    """Then the prompt is its content; the last token of it is still computed."""
    plan = build_plan(workload, 1)
    top = ceiling(plan, None, size)
    assert top.prompt_tokens == tuple(turn.content_tokens for turn in plan.turns)
    for prompt, cached in zip(top.prompt_tokens, top.cached_tokens, strict=True):
        assert cached % size == 0
        assert cached < prompt


ROWS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).flatmap(
        lambda ids: st.builds(
            lambda rest: (ids, 512 * (len(ids) - 1) + rest), st.sampled_from([1, 100, 511, 512])
        )
    ),
    min_size=1,
    max_size=12,
)


@given(rows=ROWS)
def test_a_trace_has_the_ceiling_that_its_ids_say(rows):
    """Exactly, at the block size of the ids: any order of ids, any partial last block."""
    plan = Plan(
        "t", 0, "completions", "planned",
        tuple(a_turn(i, ids, n) for i, (ids, n) in enumerate(rows)), 512,
    )  # fmt: skip
    trace = [HashRow(timestamp=0, input_length=n, output_length=1, hash_ids=ids) for ids, n in rows]
    assert ceiling(plan, None, 512).hit_rate == fakes_workload.ideal_hit_rate(trace)


def a_turn(index, ids, tokens):
    """A turn as the reader makes it from a row."""
    lengths = [512] * (len(ids) - 1) + [tokens - 512 * (len(ids) - 1)]
    segments = tuple(Segment(f"id/{i}", n) for i, n in zip(ids, lengths, strict=True))
    return PlannedTurn(index, f"r{index}", 1, "g", 0.0, 0.0, (Message("user", segments),), 1, "a")


def test_thirty_identical_prompts_hit_all_but_the_first_and_the_last_block():
    """The founding article's test: 159 tokens, 30 times, block 16: 29 × 144 of 4,770 tokens."""
    turns = tuple(
        PlannedTurn(
            i, f"s{i}", 1, "g", i * 0.8, 0.0, (Message("user", (Segment("p", 159),)),), 50, f"a{i}"
        )
        for i in range(30)
    )
    top = ceiling(Plan("single", 0, "completions", "planned", turns), None, 16)
    assert (sum(top.cached_tokens), sum(top.prompt_tokens)) == (4176, 4770)
    assert top.hit_rate == pytest.approx(0.8755, abs=5e-5)


def test_an_empty_plan_has_no_hits():
    """Nothing to divide by."""
    assert ceiling(Plan("none", 0, "chat", "planned", ()), None, 16).hit_rate == 0


def test_reading_a_trace_and_computing_its_ceiling_agree_with_the_ids(tmp_path):
    """From the file on."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[0,1,2]}\n'
        '{"timestamp":9,"input_length":1536,"output_length":5,"hash_ids":[0,1,3]}\n'
    )
    top = ceiling(read_trace(path), None, 512)
    assert top.cached_tokens == (0, 1024)
    assert ceiling(read_trace(path), None, 16).cached_tokens == (0, 1024)
