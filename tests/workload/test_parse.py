"""Workload files: typed, or refused with file, line, key, expectation and hint."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import fakes_workload
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workload.distributions import Constant, Exponential, LogNormal, Uniform
from kvbench.workload.parse import load_workload
from kvbench.workload.spec import (
    BurstArrival,
    PoissonArrival,
    PrefixLevel,
    Sessions,
    UniformPopularity,
    Workload,
    ZipfPopularity,
)

ROOT = Path(__file__).parent.parent.parent


def parse(tmp_path, text):
    """Parse `text` as a file called w.yaml."""
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    return load_workload(path)


def test_a_workload_file_becomes_a_typed_value(tmp_path):
    """Every key of the example, in its place."""
    assert parse(tmp_path, fakes_workload.CHAT) == Workload(
        name="chat",
        description="Four tenants, each with an assistant of its own.",
        api="chat",
        seed=5,
        prefixes=(
            PrefixLevel("tenant", 4, Constant(64), ZipfPopularity(1.1)),
            PrefixLevel("assistant", 2, Uniform(16, 48), UniformPopularity()),
        ),
        sessions=Sessions(
            count=12,
            turns=Uniform(1, 4),
            user_tokens=LogNormal(20, 0.5, max=80, min=4),
            answer_tokens=Constant(24),
            think=Exponential(2, max=10),
        ),
        arrival=PoissonArrival(4),
    )


def test_little_is_required(tmp_path):
    """The rest has defaults; durations may carry a unit."""
    workload = parse(
        tmp_path,
        "name: x\nsessions: {count: 1, user_tokens: 5, answer_tokens: 6, think: 250ms}\n"
        "arrival: {burst: {size: 2, every: 1.5m}}",
    )
    assert workload.prefixes == ()
    assert (workload.api, workload.history, workload.seed) == ("chat", "planned", 0)
    assert workload.sessions.turns == Constant(1)
    assert workload.sessions.think == Constant(0.25)
    assert workload.arrival == BurstArrival(2, 90)


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").glob("*.yaml")), ids=lambda p: p.name)
def test_every_workload_that_we_ship_parses_and_is_described(path):
    """Its name is its file's name, and a paragraph says what it stands for."""
    workload = load_workload(path)
    assert workload.name == path.stem
    assert len(workload.description) > 200


REPLACEMENTS = [
    (
        "turns: {uniform: [1, 4]}",
        "turns: 0",
        10,
        "sessions.turns: expected at least 1, got 0",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: 2.5",
        10,
        "sessions.turns: expected a whole number, got 2.5",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: 9000",
        10,
        "sessions.turns: expected at most 2000, got 9000",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: many",
        10,
        "sessions.turns: expected a number, got 'many'",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: yes",
        10,
        "sessions.turns: expected a number, got True",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: [1, 4]",
        10,
        "sessions.turns: expected a number, got a list",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns:",
        10,
        "sessions.turns: expected a number, got nothing",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: .inf",
        10,
        "sessions.turns: expected a finite number, got inf",
        None,
    ),
    (
        "turns: {uniform: [1, 4]}",
        "turns: .nan",
        10,
        "sessions.turns: expected a finite number, got nan",
        None,
    ),
    (
        "{uniform: [1, 4]}",
        "{uniforn: [1, 4]}",
        10,
        "sessions.turns: expected one of 'constant', 'uniform'",
        'did you mean "uniform"?',
    ),
    (
        "{uniform: [1, 4]}",
        "{uniform: [4, 1]}",
        10,
        "sessions.turns.uniform: expected the smaller bound first, got 4 and 1",
        None,
    ),
    (
        "{uniform: [1, 4]}",
        "{uniform: [1, 2, 3]}",
        10,
        "sessions.turns: expected two numbers after `uniform`, got 3",
        None,
    ),
    (
        "{uniform: [1, 4]}",
        "{uniform: [1, x]}",
        10,
        "sessions.turns.uniform: expected a number, got 'x'",
        None,
    ),
    (
        "{uniform: [1, 4]}",
        "{uniform: [1, 4], zipf: 1}",
        10,
        "sessions.turns: expected one of 'constant'",
        'did you mean "uniform"?',
    ),
    (
        "{uniform: [1, 4]}",
        "{choice: []}",
        10,
        "sessions.turns.choice: expected at least 1 items, got a list",
        None,
    ),
    (", min: 4, max: 80}", ", min: 4}", 11, "sessions.user_tokens.lognormal.max: missing", None),
    (
        "sigma: 0.5",
        "sigma: -1",
        11,
        "sessions.user_tokens.lognormal.sigma: expected at least 0, got -1",
        None,
    ),
    (
        "sigma: 0.5",
        "sigma: 0.5, mode: 3",
        11,
        "sessions.user_tokens.lognormal.mode: unknown key",
        "known: median, sigma, max, min",
    ),
    ("answer_tokens: 24", "answer_token: 24", 8, "sessions.answer_tokens: missing", None),
    (
        "  answer_tokens: 24",
        "  answer_tokens: 24\n  thinks: 3",
        13,
        "sessions.thinks: unknown key",
        'did you mean "think"?',
    ),
    (
        "answer_tokens: 24",
        "answer_tokens: 3000000",
        12,
        "sessions.answer_tokens: expected at most 2000000, got 3e+06",
        None,
    ),
    (
        "think: {exponential: {mean: 2, max: 10}}",
        "think: 3 parsecs",
        13,
        "sessions.think: expected a duration such as",
        None,
    ),
    ("count: 12", "count: 1e99", 9, "sessions.count: expected a whole number, got '1e99'", None),
    (
        "count: 12",
        "count: 99999999999999999999",
        9,
        "sessions.count: expected at most 1e+06, got 99999999999999999999",
        None,
    ),
    ("api: chat", "api: chet", 3, "api: expected 'chat' or 'completions', got 'chet'", None),
    ("name: chat\n", "name: [chat]\n", 1, "name: expected text, got a list", None),
    (
        "name: chat\n",
        "name: my chat\n",
        1,
        "name: expected letters, digits, '.', '_' and '-', got 'my chat'",
        None,
    ),
    ("seed: 5", "seed: -5", 4, "seed: expected at least 0, got -5", None),
    ("seed: 5", "sed: 5", 4, "sed: unknown key", 'did you mean "seed"?'),
    ("seed: 5", "colour: red", 4, "colour: unknown key", "known: name, sessions"),
    (
        "{zipf: 1.1}",
        "zipf(1.1)",
        6,
        "prefixes.0.popularity: expected one of 'uniform', 'zipf', 'weights', 'even', got ",
        'did you mean "zipf"?',
    ),
    (
        "{zipf: 1.1}",
        "{zipf: steep}",
        6,
        "prefixes.0.popularity.zipf: expected a number, got 'steep'",
        None,
    ),
    (
        "name: assistant",
        "name: tenant",
        5,
        "prefixes: expected names that differ, got tenant, tenant",
        None,
    ),
    ("name: assistant, ", "", 7, "prefixes.1.name: missing", None),
    (
        "  - {name: tenant, count: 4, tokens: 64, popularity: {zipf: 1.1}}",
        "  - 3",
        6,
        "prefixes.0: expected keys and values, got 3",
        None,
    ),
    (
        "poisson: {rate: 4}",
        "poisson: {rate: 0}",
        15,
        "arrival.poisson.rate: expected more than 0, got 0",
        None,
    ),
    (
        "poisson: {rate: 4}",
        "poison: {rate: 4}",
        14,
        "arrival: expected one of 'constant', 'poisson', 'gamma', 'burst', 'ramp', 'ladder', 'rep",
        'did you mean "poisson"?',
    ),
    ("poisson: {rate: 4}", "poisson: 4", 15, "arrival.poisson.rate: missing", None),
    (
        "poisson: {rate: 4}",
        "burst: {size: 3, every: never}",
        15,
        "arrival.burst.every: expected a duration",
        None,
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "says", "hint"), REPLACEMENTS, ids=lambda v: str(v)[:40]
)
def test_a_mistake_is_named_with_its_line(tmp_path, old, new, line, says, hint):
    """One change to a good file; one sentence that leads to it."""
    assert old in fakes_workload.CHAT
    with pytest.raises(InputError) as caught:
        parse(tmp_path, fakes_workload.CHAT.replace(old, new, 1))
    assert caught.value.message.startswith(f"{tmp_path}/w.yaml:{line}: {says}")
    assert caught.value.hint.startswith(hint or "the keys are described in workloads/README.md")


def test_of_several_mistakes_the_first_in_the_file_is_named(tmp_path):
    """People mend files from the top."""
    text = fakes_workload.CHAT.replace("seed: 5", "seed: x").replace("rate: 4", "rate: x")
    with pytest.raises(InputError, match=r":4: seed: expected a whole number, got 'x'"):
        parse(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("- 1\n- 2", r":1: expected keys and values, got a list", id="a list"),
        pytest.param("chat", r":1: expected keys and values, got 'chat'", id="a word"),
        pytest.param("description: x", r":1: (name|sessions|arrival): missing", id="too little"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, text, says):
    """A workload is a mapping."""
    with pytest.raises(InputError, match=says):
        parse(tmp_path, text)


def test_an_empty_user_message_is_for_completions_only(tmp_path):
    """A chat without a question makes no sense; a bare prompt does, if there is a prefix."""
    text = fakes_workload.CHAT.replace("user_tokens: {lognormal", "user_tokens: 0  # {")
    with pytest.raises(InputError, match=r":11: sessions.user_tokens: expected at least 1 with"):
        parse(tmp_path, text)
    text = text.replace("api: chat", "api: completions")
    assert parse(tmp_path, text).sessions.user_tokens == Constant(0)
    start, end = text.index("prefixes:"), text.index("sessions:")
    with pytest.raises(InputError, match=r"prefixes: expected at least one level"):
        parse(tmp_path, text[:start] + text[end:])


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    key=st.sampled_from(["prefixes", "sessions", "arrival", "name", "api", "turns", "poisson"]),
    value=YAML_VALUES,
)
def test_no_value_in_any_place_crashes(tmp_path_factory, key, value):
    """Whatever stands there, it parses or is an InputError."""
    import yaml

    content = yaml.safe_load(fakes_workload.CHAT)
    inner = {"turns": content["sessions"], "poisson": content["arrival"]}.get(key, content)
    inner[key] = value
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with suppress(InputError):
        load_workload(path)
