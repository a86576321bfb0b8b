"""Whole simulations: equal to a real engine's recordings, to each other, and to their own laws."""

from dataclasses import replace
from itertools import pairwise

import fakes_workload
import pytest
from fakes_oracle import CHAT, SHIPPED, TIME, fleet_like, fleet_of, write_plan, write_recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.engine.timing import StepTime
from kvbench.errors import InputError
from kvbench.oracle.load import Reading, load_script
from kvbench.oracle.play import play
from kvbench.oracle.script import from_plan
from kvbench.policies.table import POLICIES
from kvbench.workload.build import build_plan
from kvbench.workload.render import Renderer


def played(script, fleet, mode="timed"):
    """Return all rows, and the summary."""
    run = play(script, fleet, mode)
    return list(run), run.summary()


def script_of(workload, seed=0, size=16):
    """Return the script of a workload, chat template included."""
    plan = build_plan(workload, seed)
    renderer = Renderer(plan, SHIPPED) if plan.api == "chat" else None
    return from_plan(plan, renderer, size, where=str)


@pytest.mark.parametrize("name", ["serial_public", "serial_tight"])
def test_a_log_played_serially_hits_what_the_real_engine_hit(tmp_path, name):
    """In every row, resets included, from the file on."""
    path = tmp_path / "log.jsonl"
    recording = write_recording(path, name)
    script = load_script(path, Reading(recording.config.block_size))
    rows, summary = played(script, fleet_like(recording), "serial")
    recorded = list(recording.rows.values())
    assert [row.cached_tokens for row in rows] == [row["cached"] for row in recorded]
    assert [row.prompt_tokens for row in rows] == [len(row["prompt"]) for row in recorded]
    assert summary.cached_tokens == sum(row["cached"] for row in recorded)
    assert summary.hit_rate <= summary.ceiling
    assert (summary.resets, summary.resets_refused) == (1, 0)


@pytest.mark.parametrize("name", ["batch_tight", "batch_preempt"])
def test_a_log_played_at_once_hits_what_the_real_engine_hit(tmp_path, name):
    """90 of 90 rows, and the engine's counters by their names."""
    path = tmp_path / "log.jsonl"
    recording = write_recording(path, name)
    script = load_script(path, Reading(recording.config.block_size))
    rows, summary = played(script, fleet_like(recording), "batch")
    assert [row.cached_tokens for row in rows] == [row["cached"] for row in recording.rows.values()]
    assert [row.index for row in rows] == list(range(90))
    assert summary.metrics == {
        f"vllm:{name}": count for name, count in recording.header["counters"].items()
    }
    assert summary.preemptions == recording.header["counters"]["num_preemptions"]


@given(
    workload=fakes_workload.workloads(),
    pods=st.integers(1, 3),
    blocks=st.integers(70, 200),
    policy=st.sampled_from(sorted(POLICIES)),
    mode=st.sampled_from(["timed", "serial", "batch"]),
    seqs=st.integers(1, 6),
    speed=st.sampled_from([1.0, 300.0]),
)
def test_skipping_over_steps_changes_nothing(workload, pods, blocks, policy, mode, seqs, speed):
    """Every row, its times to the last bit, and every counter."""
    script = script_of(workload, size=4)
    slow = TIME.faster(1 / speed)
    fleet = fleet_of(pods=pods, blocks=blocks * 4, size=4, policy=policy, max_num_seqs=seqs)
    fleet = replace(fleet, time=slow)
    assert played(script, fleet, mode) == played(script, replace(fleet, skip=False), mode)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=fakes_workload.workloads(), size=st.sampled_from([16, 32]))
def test_spans_hit_what_their_tokens_hit(tmp_path, workload, size):
    """The same plan as spans and as the token ids that would be sent, template included."""
    plan = build_plan(workload, 3)
    path = tmp_path / "log.jsonl"
    renderer = write_plan(path, plan)
    fleet = fleet_of(blocks=1000 // size, size=size)
    spans = from_plan(plan, renderer, size, where=str)
    tokens = load_script(path, Reading(size))
    left, right = (played(script, fleet, "serial")[0] for script in (spans, tokens))
    assert [row.cached_tokens for row in left] == [row.cached_tokens for row in right]
    assert [row.ceiling_tokens for row in left] == [row.ceiling_tokens for row in right]
    assert [row.ttft_s for row in left] == [row.ttft_s for row in right]


@settings(max_examples=15)
@given(workload=fakes_workload.workloads(), history=st.sampled_from(["planned", "answers"]))
def test_a_pod_that_never_evicts_reaches_the_ceiling_one_by_one(workload, history):
    """Row for row, whether later prompts repeat the real answers or not."""
    plan = replace(build_plan(workload, 1), history=history)
    renderer = Renderer(plan, SHIPPED) if plan.api == "chat" else None
    rows, summary = played(
        from_plan(plan, renderer, 16, where=str), fleet_of(blocks=100_000), "serial"
    )
    assert [row.cached_tokens for row in rows] == [row.ceiling_tokens for row in rows]
    assert (summary.evictions, summary.hit_rate) == (0, summary.ceiling)


@pytest.mark.parametrize("mode", ["timed", "serial", "batch"])
def test_with_one_pod_the_policy_does_not_matter(mode):
    """There is nothing to choose."""
    script = script_of(CHAT)
    expected = [(r.cached_tokens, r.ttft_s) for r in played(script, fleet_of(), mode)[0]]
    for policy in POLICIES:
        rows, summary = played(script, fleet_of(policy=policy), mode)
        assert [(row.cached_tokens, row.ttft_s) for row in rows] == expected
        assert {row.reason for row in rows} == {"only"}
        assert summary.policy == policy


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_serves_every_turn_and_is_deterministic(policy):
    """The same seed, the same rows; all tokens are accounted for; pods end up idle."""
    script = script_of(CHAT)
    run = play(script, fleet_of(pods=3, policy=policy, seed=5))
    rows, again = list(run), played(script, fleet_of(pods=3, policy=policy, seed=5))
    assert (rows, run.summary()) == again
    assert [row.index for row in rows] == list(range(len(script.requests)))
    summary = run.summary()
    assert summary.prompt_tokens == sum(row.prompt_tokens for row in rows)
    assert sum(pod.requests for pod in summary.pods) == len(rows)
    assert all(
        (pod.state.in_flight, pod.state.in_flight_prefill_tokens) == (0, 0)
        and not pod.engine.has_work
        and pod.engine.pool.free == pod.engine.pool.usable
        for pod in run._pods.values()
    )


def test_a_prefix_policy_keeps_conversations_together_where_round_robin_scatters_them():
    """What the tool is for: more hits at a balance that is no worse than a half."""
    script = script_of(CHAT)
    _, scattered = played(script, fleet_of(pods=4, policy="round_robin"))
    _, together = played(script, fleet_of(pods=4, policy="prefix_estimate"))
    assert together.hit_rate > 1.1 * scattered.hit_rate
    assert together.hit_rate <= together.ceiling


@pytest.mark.parametrize("policy", ["prefix_cost", "prefix_precise"])
def test_a_policy_that_hears_events_predicts_to_the_token(policy):
    """One at a time, caches that hold a fifth of it; without events it can only estimate."""
    script = script_of(CHAT)
    fleet = fleet_of(pods=2, blocks=100, policy=policy, seed=2)
    rows, _ = played(script, replace(fleet, events=True), "serial")
    assert all(row.predicted_tokens == row.cached_tokens for row in rows)
    assert sum(row.cached_tokens for row in rows) > 0
    estimated, _ = played(script, fleet, "serial")
    assert any(row.predicted_tokens != row.cached_tokens for row in estimated)


def test_a_turn_is_sent_when_the_turn_before_has_ended_and_the_pause_is_over():
    """Within a session; the first turn comes at its own time."""
    script = script_of(CHAT)
    rows, _ = played(script, fleet_of(pods=2))
    later = 0
    for request, row in zip(script.requests, rows, strict=True):
        if request.at is None:
            ends = [rows[i].arrival_s + rows[i].e2e_s for i in request.after]
            assert row.arrival_s == pytest.approx(max(ends) + request.think)
            later += 1
        else:
            assert row.arrival_s == request.at
    assert later == 24


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_pod_that_joins_later_gets_nothing_before(policy):
    """And is then chosen by those who look at load, turns or chance."""
    fleet = replace(fleet_of(pods=2, policy=policy), join_s=0.3)
    rows, summary = played(script_of(CHAT), fleet)
    late = [row.arrival_s for row in rows if row.pod == "pod-2"]
    assert min(late, default=0.3) >= 0.3
    assert summary.pods[1].requests == len(late) > 0


def test_a_single_pod_cannot_join_later():
    """There would be nobody before."""
    with pytest.raises(InputError, match="pods: expected at least 2 where the last one joins"):
        play(script_of(CHAT), replace(fleet_of(pods=1), join_s=0.3))


def test_a_serial_request_arrives_when_the_one_before_has_ended():
    """So no request ever waits."""
    rows, _ = played(script_of(CHAT), fleet_of(), "serial")
    for before, row in pairwise(rows):
        assert row.arrival_s == pytest.approx(before.arrival_s + before.e2e_s)
        alone = TIME.prefill_seconds(row.prompt_tokens, row.cached_tokens)
        assert row.ttft_s == pytest.approx(alone)


def test_answers_take_blocks_unless_only_prefills_are_played():
    """A small cache holds less of the prompts if it must hold answers as well."""
    plan = build_plan(CHAT, 0)
    scripts = [
        from_plan(plan, Renderer(plan, SHIPPED), 16, where=str, prefill_only=only)
        for only in (False, True)
    ]
    (whole, first), (prefills, second) = (
        played(script, fleet_of(blocks=40), "serial") for script in scripts
    )
    assert first.evictions > second.evictions
    assert second.completion_tokens == len(prefills) == len(whole)
    assert second.hit_rate >= first.hit_rate


def test_a_reset_while_requests_run_is_refused_and_said(tmp_path):
    """As vLLM refuses it; the rows after it still hit."""
    path = tmp_path / "log.jsonl"
    row = '{"prompt_token_ids": [' + ", ".join(["7"] * 64) + '], "max_tokens": 90, "at": %s}\n'
    path.write_text(row % "0" + '{"event": "reset_prefix_cache"}\n' + row % "0.01")
    script = load_script(path, Reading(16))
    rows, summary = played(script, fleet_of())
    assert (summary.resets, summary.resets_refused) == (1, 1)
    assert [row.cached_tokens for row in rows] == [0, 48]
    rows, summary = played(script, fleet_of(), "serial")
    assert (summary.resets, summary.resets_refused) == (1, 0)
    assert [row.cached_tokens for row in rows] == [0, 0]


def test_steps_that_take_no_time_end_all_the_same():
    """Arrivals, ends and beginnings of one moment have an order."""
    script = script_of(CHAT)
    rows, summary = played(script, replace(fleet_of(pods=2), time=StepTime(0, 0, 0, 0, 0, 0)))
    assert {row.ttft_s for row in rows} == {0.0}
    assert summary.requests == len(rows)


def test_a_log_without_times_cannot_be_played_in_time(tmp_path):
    """It says how it can be."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"prompt_token_ids": [1, 2], "max_tokens": 3}\n')
    script = load_script(path, Reading(16))
    with pytest.raises(InputError, match=r"log.jsonl:1: expected times") as error:
        play(script, fleet_of())
    assert "--serial" in error.value.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blocks": 3}, "log.jsonl:2: prompt and answer: expected at most 33 tokens"),
        ({"longest": 50}, "log.jsonl:2: prompt and answer: expected at most 50 tokens"),
        ({"pods": 0}, "pods: expected at least 1, got 0"),
        ({"policy": "magic"}, "policy: expected one of"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_is(tmp_path, settings, said):
    """With the line of the request that does not fit."""
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"prompt_token_ids": [1, 2], "max_tokens": 3}\n'
        f'{{"prompt_token_ids": {list(range(40))}, "max_tokens": 20}}\n'
    )
    longest = settings.pop("longest", 1_000_000)
    fleet = fleet_of(**settings)
    fleet = replace(fleet, config=replace(fleet.config, max_model_len=longest))
    with pytest.raises(InputError) as error:
        play(load_script(path, Reading(16)), fleet, "serial")
    assert said in error.value.message


def test_what_a_request_costs_outside_the_engine_is_in_its_first_token(tmp_path):
    """On a pod that does nothing else: so much later, by request and by prompt token."""
    path = tmp_path / "log.jsonl"
    recording = write_recording(path, "serial_tight")
    script = load_script(path, Reading(recording.config.block_size))
    fleet = fleet_like(recording)
    bare, _ = played(script, fleet, "serial")
    rows, _ = played(script, replace(fleet, request_s=0.01, request_token_s=1e-5), "serial")
    assert [row.cached_tokens for row in rows] == [row.cached_tokens for row in bare]
    later = [row.ttft_s - before.ttft_s for row, before in zip(rows, bare, strict=True)]
    assert later == pytest.approx([0.01 + 1e-5 * row.prompt_tokens for row in rows])
