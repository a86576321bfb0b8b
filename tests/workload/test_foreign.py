"""Settings of other load generators, as workloads."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.workload.foreign import from_inference_perf, from_production_stack, write_workload
from kvbench.workload.load import load_plan

SHARED = """\
data:
  type: shared_prefix
  shared_prefix:
    num_unique_system_prompts: 10
    num_users_per_system_prompt: 5
    system_prompt_len: 2048
    question_len: 256
    output_len: 128
    seed: 3
load:
  type: poisson
  stages: [{rate: 2, duration: 60}, {rate: 4, duration: 30}]
"""
OPTIONS = (
    "python3 multi-round-qa.py --num-users 10 --num-rounds 5 --qps 0.5 "
    "--shared-system-prompt 1000 --user-history-prompt=2000 --answer-len 100 --time 100 "
    "--model m --request-with-user-id --base-url http://x/v1"
)


def plan_of(tmp_path, content):
    """The plan of a workload's content."""
    write_workload(tmp_path / "w.yaml", content)
    return load_plan(tmp_path / "w.yaml", None)


@pytest.mark.parametrize("spelling", ["long", "short"])
def test_shared_prefixes_are_sent_in_rounds_up_the_stages(tmp_path, spelling):
    """Both spellings; about 240 requests, each of the fifty prompts in each round of fifty."""
    text = SHARED
    if spelling == "short":
        text = text.replace("num_unique_system_prompts", "num_groups")
        text = text.replace("num_users_per_system_prompt", "num_prompts_per_group")
    path = tmp_path / "perf.yaml"
    path.write_text(text)
    content, notes = from_inference_perf(path)
    plan = plan_of(tmp_path, content)
    assert notes == []
    assert (plan.api, plan.seed) == ("completions", 3)
    assert len(plan.turns) == pytest.approx(240, rel=0.25)
    assert {t.content_tokens for t in plan.turns} == {2304}
    assert {t.max_tokens for t in plan.turns} == {128}
    assert len({t.group for t in plan.turns[:50]}) == 50
    assert 60 < max(t.at for t in plan.turns) < 90


def test_users_that_ask_again_are_sessions(tmp_path):
    """Their next turn follows on the answer, which a note says."""
    path = tmp_path / "perf.yaml"
    path.write_text(SHARED.replace("seed: 3", "enable_multi_turn_chat: true"))
    content, notes = from_inference_perf(path)
    plan = plan_of(tmp_path, content)
    assert {t.turn for t in plan.turns} == {1, 2, 3, 4, 5}
    assert "50 users with 5 turns each" in notes[0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shared_prefix\n", "random\n", "perf.yaml:2: data.type: expected shared_prefix, got 'ran"),
        ("    question_len: 256\n", "", r"perf.yaml:3: data.shared_prefix.question_len: missing"),
        ("256", "-1", r"perf.yaml:7: data.shared_prefix.question_len: expected a whole number"),
        ("poisson", "gamma", r"load.type: expected constant or poisson, got 'gamma'"),
        ("rate: 2", "rate: x", r"load.stages.0: expected a rate and a duration above 0"),
        (" [{rate: 2, duration: 60}, {rate: 4, duration: 30}]", "", r"load.stages: expected a li"),
        ("load:", "lord:", r"load: expected keys and values"),
    ],
)
def test_a_configuration_that_lacks_something_is_an_input_error(tmp_path, old, new, says):
    """With file, line and key."""
    path = tmp_path / "perf.yaml"
    assert old in SHARED
    path.write_text(SHARED.replace(old, new, 1))
    with pytest.raises(InputError, match=says):
        from_inference_perf(path)


def test_multi_round_options_become_sessions_with_their_own_history(tmp_path):
    """A user every ten seconds for a hundred, five questions each, twenty seconds apart."""
    content, notes = from_production_stack(OPTIONS, "options.txt")
    plan = plan_of(tmp_path, content)
    assert plan.sessions == 10
    assert plan.history == "answers"
    assert [t.at for t in plan.turns if t.at is not None] == [10.0 * i for i in range(10)]
    first = plan.turns[0]
    assert [s.tokens for s in first.messages[0].segments] == [1000, 2000]
    assert len({t.messages[0].segments[1].key for t in plan.turns}) == 10
    assert len({t.messages[0].segments[0].key for t in plan.turns}) == 1
    assert {t.think for t in plan.turns if t.turn > 1} == {20.0}
    assert {t.max_tokens for t in plan.turns} == {100}
    assert "--model has no counterpart in a workload" in notes


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("--qps 0.5", "", r"options.txt: --qps: missing"),
        ("--qps 0.5", "--qps many", r"options.txt: --qps: expected a number, got 'many'"),
        ("--qps 0.5", "--qps 0", r"options.txt: expected users, rounds, qps and answer length"),
        ("--qps", "--speed", r"options.txt: expected an option of the multi-round benchmark, got"),
        ("--qps 0.5", "'", r"options.txt: not a command line"),
    ],
)
def test_options_that_are_none_are_input_errors(old, new, says):
    """By their names."""
    with pytest.raises(InputError, match=says):
        from_production_stack(OPTIONS.replace(old, new), "options.txt")
