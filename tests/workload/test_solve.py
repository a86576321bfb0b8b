"""Numbers that are left out are solved for, and what was wanted comes about."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.oracle.ceiling import ceiling
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.load import load_plan
from kvbench.workload.render import Renderer
from kvbench.workload.sharing import prefix_tokens

BASE = """\
name: x
api: completions
prefixes:
  - {name: instruction, count: 1, tokens: 64}
  - {name: document, count: 40, tokens: 512, popularity: even}
sessions:
  count: 120
  turns: 1
  user_tokens: {uniform: [30, 90]}
  answer_tokens: 40
arrival: {poisson: {rate: 5}}
"""


def planned(tmp_path, *changes):
    """The plan of the base with some texts replaced; `+` adds a line."""
    text = BASE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load_plan(path, None, seed=3)


def with_hits(rate, *changes):
    """The change that asks for a hit rate."""
    return ("name: x\n", f"name: x\ntarget_hit_rate: {rate}\n"), *changes


@pytest.mark.parametrize(
    ("left_out", "name", "rate"),
    [
        (("count: 40, ", ""), "prefixes.1.count", 0.3),
        (("count: 40, ", ""), "prefixes.1.count", 0.7),
        (("tokens: 512, ", ""), "prefixes.1.tokens", 0.6),
        (("  count: 120\n", ""), "sessions.count", 0.4),
        (("  count: 120\n", ""), "sessions.count", 0.8),
    ],
)
def test_the_oracle_confirms_the_hit_rate(tmp_path, left_out, name, rate):
    """Within one point, by the ceiling over real tokens."""
    plan = planned(tmp_path, *with_hits(rate, left_out))
    top = ceiling(plan, Renderer(plan, Tokenizer.load()), 16)
    assert top.hit_rate == pytest.approx(rate, abs=0.01)
    assert plan.notes[0].startswith(f"{name} is ")


def test_a_working_set_is_met(tmp_path):
    """The count of the level that was left open follows, and the plan asks for nearly all of it."""
    plan = planned(
        tmp_path,
        ("name: x\n", "name: x\nworking_set: {capacity: 20000, times: 1.5}\n"),
        ("count: 40, ", ""),
    )
    assert plan.notes == ("prefixes.1.count is 58, for a working set of 30,000 tokens",)
    assert prefix_tokens(plan) == 64 + 58 * 512


def test_working_set_and_hit_rate_are_met_together(tmp_path):
    """Two numbers are left out, and both follow."""
    plan = planned(
        tmp_path,
        ("name: x\n", "name: x\nworking_set: 30000\ntarget_hit_rate: 0.6\n"),
        ("count: 40, tokens: 512, ", ""),
    )
    top = ceiling(plan, None, 16)
    assert top.hit_rate == pytest.approx(0.6, abs=0.01)
    assert prefix_tokens(plan) == pytest.approx(30_000, rel=0.05)


def test_every_worker_solves_alike(tmp_path):
    """It is part of the plan: same file and seed, same bytes."""
    change = with_hits(0.4, ("count: 40, ", ""))
    assert repr(planned(tmp_path, *change)) == repr(planned(tmp_path, *change))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            with_hits(0.99, ("count: 40, ", "")),
            r"target_hit_rate: expected what prefixes\.1\.count can bring about, got 0\.99; near",
        ),
        (
            with_hits(0.97, ("  count: 120\n", "")),  # given up early: more sessions bring nothing
            r"expected what sessions\.count can bring about, got 0\.97; .* with (512|1,024|2,048)$",
        ),
        (with_hits(0.5), r"x\.yaml:2: target_hit_rate: expected a number to be left out for it"),
        ((("count: 40, ", ""),), r"x\.yaml:5: prefixes\.1\.count: missing"),
        ((("  count: 120\n", ""),), r"x\.yaml:6: sessions\.count: missing"),
        (
            (("name: x\n", "name: x\nworking_set: 3000\n"), ("  count: 120\n", "")),
            r"x\.yaml:2: working_set: expected one level of prefixes without `count`",
        ),
        (
            (("name: x\n", "name: x\nworking_set: 300\n"), ("count: 40, ", "")),
            r"working_set: expected at least 576 tokens, which one document makes, got 300",
        ),
    ],
)
def test_what_cannot_be_solved_is_an_input_error(tmp_path, changes, says):
    """With the place, and what is missing or out of reach."""
    with pytest.raises(InputError, match=says):
        planned(tmp_path, *changes)
