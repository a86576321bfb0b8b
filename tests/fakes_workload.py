"""Workloads and plans for tests: small, complete, and as strange as hypothesis likes."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import strategies as st

from kvbench.workload.distributions import Choice, Constant, Exponential, LogNormal, Normal, Uniform
from kvbench.workload.distributions import Zipf as ZipfNumber
from kvbench.workload.spec import (
    BurstArrival,
    ConstantArrival,
    EvenPopularity,
    GammaArrival,
    PoissonArrival,
    PrefixLevel,
    Sessions,
    Subagents,
    Tools,
    UniformPopularity,
    UsersArrival,
    Workload,
    ZipfPopularity,
)
from kvbench.workload.strategies import Append, DropOldest, Gist, GistRecent, Summary

CHAT = """\
name: chat
description: Four tenants, each with an assistant of its own.
api: chat
seed: 5
prefixes:
  - {name: tenant, count: 4, tokens: 64, popularity: {zipf: 1.1}}
  - {name: assistant, count: 2, tokens: {uniform: [16, 48]}}
sessions:
  count: 12
  turns: {uniform: [1, 4]}
  user_tokens: {lognormal: {median: 20, sigma: 0.5, min: 4, max: 80}}
  answer_tokens: 24
  think: {exponential: {mean: 2, max: 10}}
arrival:
  poisson: {rate: 4}
"""
"""A workload file that uses most of what there is."""


def whole_numbers(low, high):
    """Distributions of every kind within `low` … `high`."""
    return st.one_of(
        st.builds(Constant, st.integers(low, high)),
        st.builds(lambda a, b: Uniform(min(a, b), max(a, b)), *[st.integers(low, high)] * 2),
        st.builds(lambda m, s: Normal(m, s, high, low), st.integers(low, high), st.floats(0, 9)),
        st.builds(lambda m: LogNormal(m, 1.0, high, low), st.integers(1, high)),
        st.builds(lambda m: Exponential(m, high, low), st.integers(1, high)),
        st.builds(lambda e: ZipfNumber(e, high, low), st.floats(0, 3)),
        st.builds(Choice, st.lists(st.integers(low, high), min_size=1, max_size=4).map(tuple)),
    )


RATES = st.floats(0.1, 100)
ARRIVALS = st.one_of(
    st.builds(ConstantArrival, RATES),
    st.builds(PoissonArrival, RATES),
    st.builds(GammaArrival, RATES, st.floats(0.1, 5)),
    st.builds(BurstArrival, st.integers(1, 5), st.floats(0.1, 10)),
)


_PREFIXES, _TURNS = whole_numbers(1, 40), whole_numbers(1, 4)
_TOKENS, _PAUSES = whole_numbers(1, 30), whole_numbers(0, 5)
_POPULARITIES = st.sampled_from([UniformPopularity(), ZipfPopularity(1.2), EvenPopularity()])
_TOOLS = st.builds(Tools, whole_numbers(0, 2), _TOKENS, _PAUSES, st.none() | _TOKENS)
_SUBAGENTS = st.builds(
    Subagents,
    chance=st.sampled_from([0.5, 1.0]),
    turns=whole_numbers(1, 3),
    user_tokens=_TOKENS,
    answer_tokens=_TOKENS,
    count=whole_numbers(1, 2),
    think=_PAUSES,
    context=st.sampled_from(["fork", "fresh"]),
    join=st.booleans(),
)
_WINDOWS = st.integers(30, 300)
CONTEXTS = st.one_of(
    st.builds(Append),
    st.builds(DropOldest, _WINDOWS),
    st.builds(Gist, _WINDOWS, st.integers(1, 29)),
    st.builds(GistRecent, _WINDOWS, st.integers(1, 14), st.integers(1, 14)),
    st.builds(Summary, _WINDOWS, st.integers(1, 14), st.integers(0, 14)),
)
USERS = st.builds(UsersArrival, st.integers(1, 3), st.floats(0, 2), _PAUSES)


@st.composite
def agents(draw, *, api=None, history="planned", reasoning=True):
    """Small workloads with all that clients do: tools, sub-agents, reasoning, windows, users."""
    plain = draw(workloads(api=api, history=history))
    sessions = replace(
        plain.sessions,
        reasoning_tokens=draw(whole_numbers(0, 9)) if reasoning else Constant(0),
        reasoning=draw(st.sampled_from(["drop", "echo"])),
        tools=draw(st.none() | _TOOLS),
        subagents=draw(st.none() | _SUBAGENTS),
    )
    arrival = draw(st.just(plain.arrival) | USERS)
    return replace(plain, sessions=sessions, arrival=arrival, context=draw(CONTEXTS))


@st.composite
def workloads(draw, *, api=None, history="planned"):
    """Small workloads with up to three levels of prefixes, of either API unless one is given."""
    levels = [
        PrefixLevel(name, draw(st.integers(1, 3)), draw(_PREFIXES), draw(_POPULARITIES))
        for name in ["tenant", "system", "document"][: draw(st.integers(0, 3))]
    ]
    sessions = Sessions(
        count=draw(st.integers(1, 8)),
        turns=draw(_TURNS),
        user_tokens=draw(_TOKENS),
        answer_tokens=draw(_TOKENS),
        think=draw(_PAUSES),
    )
    return Workload(
        name="drawn",
        sessions=sessions,
        arrival=draw(ARRIVALS),
        api=api or draw(st.sampled_from(["chat", "completions"])),
        history=history,
        prefixes=tuple(levels),
    )


# A trace of three rows.
ROWS = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 7, "hash_ids": [0, 1]},
    {"timestamp": 4000.5, "input_length": 600, "output_length": 1, "hash_ids": [0, 9], "x": 1},
]


def write_trace(tmp_path, *lines):
    """Write a trace of rows, or of raw lines."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def ideal_hit_rate(rows, block=512):
    """The share of prompt tokens that an endless cache would hold, from the ids alone.

    A row hits the longest run of full blocks, from its beginning, that an earlier row began with
    too; of n tokens at most floor((n - 1) / block) blocks, since the last token is computed.
    """
    seen = set()
    hit = total = 0
    for row in rows:
        total += row.input_length
        full = row.hash_ids[: row.input_length // block]
        beginnings = [tuple(full[: i + 1]) for i in range(len(full))]
        known = next((i for i, b in enumerate(beginnings) if b not in seen), len(full))
        hit += block * min(known, (row.input_length - 1) // block)
        seen.update(beginnings)
    return hit / total if total else 0.0
