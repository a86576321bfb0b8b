"""Workloads and plans for tests: small, complete, and as strange as hypothesis likes."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from kvbench.workload.distributions import Choice, Constant, Exponential, LogNormal, Normal, Uniform
from kvbench.workload.distributions import Zipf as ZipfNumber
from kvbench.workload.spec import (
    BurstArrival,
    ConstantArrival,
    GammaArrival,
    PoissonArrival,
    PrefixLevel,
    Sessions,
    UniformPopularity,
    Workload,
    ZipfPopularity,
)

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
_POPULARITIES = st.sampled_from([UniformPopularity(), ZipfPopularity(1.2)])


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
