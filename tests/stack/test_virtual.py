"""Runs, comparisons and ladders in virtual time: whole, exact, and without a socket."""

import pytest

from kvbench.errors import InputError
from kvbench.gates.compare import judge_rounds
from kvbench.gates.grammar import parse_gate
from kvbench.gates.judge import judge
from kvbench.records.evidence import counted_hits, read_evidence
from kvbench.records.validity import Limits
from kvbench.report.page import build_report
from kvbench.stack.compare import Trial, measuring, rounds_from, rounds_of
from kvbench.stack.ladder import at_rate, climb
from kvbench.stack.virtual import VirtualPods, run_virtual
from kvbench.workload.parse import load_workload

WORKLOAD = """
name: small
prefixes:
  - {name: system, count: 6, tokens: 600}
sessions: {count: 30, turns: 3, user_tokens: 60, answer_tokens: 8, think: 0.2}
arrival: {poisson: {rate: 6}}
gates: [errors <= 0, evictions <= 0/s]
"""
PODS = VirtualPods(num_gpu_blocks=2048)


class Quiet:
    """A watch that shows nothing."""

    def begin(self, _):
        """Say nothing."""

    def update(self, _):
        """Say nothing."""

    def end(self):
        """Say nothing."""


@pytest.fixture
def workload(tmp_path):
    """A workload file."""
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD)
    return path


def test_a_virtual_run_is_a_run_like_any_other(workload, tmp_path):
    """Valid, judged by its workload's gates, reported; rows and pods agree to the token."""
    folder = run_virtual(workload, "prefix_cost", pods=PODS, runs=tmp_path / "r", seed=1)
    evidence = read_evidence(folder)
    assert evidence.reasons == ()
    assert len(evidence.frame) == 90
    assert counted_hits(evidence.manifest, evidence.server) == evidence.summary.hits.cached_tokens
    gates = [parse_gate(text) for text in evidence.manifest.gates]
    assert judge(evidence, gates).decided == "passed"
    assert "virtual time" in build_report([folder.path], tmp_path / "r.html").read_text()
    apart = evidence.frame["predicted_tokens"] != evidence.frame["cached_tokens"]
    causes = evidence.frame["prediction_cause"].groupby(apart, observed=True).unique()
    assert {key: list(found) for key, found in causes.items()} == {
        False: ["none"],
        True: ["estimate"],
    }


def test_the_same_seed_gives_the_same_rows(workload, tmp_path):
    """On every machine, every time."""
    rows = [
        run_virtual(workload, "prefix_cost", pods=PODS, runs=tmp_path / "r", seed=seed)
        .rows_path(0)
        .read_bytes()
        for seed in (1, 1, 2)
    ]
    assert rows[0] == rows[1] != rows[2]


def test_two_policies_compared_in_turns(workload, tmp_path):
    """A B, B A: and each round has a seed of its own, the same for both."""
    trial = Trial(
        arms=("round_robin", "prefix_cost"), workload=workload, rounds=2, virtual=True,
        runs=tmp_path / "r", seed=5,
    )  # fmt: skip
    order = []
    gate = parse_gate("hit_rate no worse than baseline")
    with measuring(trial, Quiet()) as measure:
        rounds = rounds_of(trial, measure, [gate], lambda n, run: order.append((n, run.arm)))
    assert order == [
        (0, "round_robin"), (0, "prefix_cost"), (1, "prefix_cost"), (1, "round_robin"),
    ]  # fmt: skip
    assert [[run.fingerprint.seed for run in pair] for pair in rounds] == [[5, 5], [6, 6]]
    assert judge_rounds(rounds, [gate]).decided != "failed"


def test_folders_of_runs_are_compared_in_the_order_of_their_names(workload, tmp_path):
    """As many on either side, or it is an error."""
    for side, seeds in (("a", (1, 2)), ("b", (1, 2)), ("c", (1,))):
        for seed in seeds:
            run_virtual(workload, "prefix_cost", pods=PODS, runs=tmp_path / side, seed=seed)
    rounds = rounds_from(tmp_path / "a", tmp_path / "b", [], Limits())
    assert [pair[0].fingerprint.seed for pair in rounds] == [1, 2]
    assert all(a.values == b.values for a, b in rounds)
    with pytest.raises(InputError, match="got 2 and 1"):
        rounds_from(tmp_path / "a", tmp_path / "c", [], Limits())
    with pytest.raises(InputError, match="expected a run folder, or a folder of runs"):
        rounds_from(tmp_path, tmp_path / "a", [], Limits())


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (("prefix_cost", "prefix_cots"), "expected a URL, a run folder or one of .*'prefix_cots'"),
        (("prefix_cost", "http://127.0.0.1:1"), "expected two policies or two URLs"),
        (("http://127.0.0.1:1", "http://127.0.0.1:2"), "--virtual: expected policies, got URLs"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(workload, arms, message):
    """Before anything is started."""
    trial = Trial(arms=arms, workload=workload, virtual=True)
    with pytest.raises(InputError, match=message), measuring(trial, Quiet()):
        pass


def test_a_ladder_measures_every_arm_at_every_rate(workload, tmp_path):
    """Rising, and with more load it takes longer."""
    trial = Trial(
        arms=("round_robin", "prefix_cost"), workload=workload, rounds=2, virtual=True,
        runs=tmp_path / "r",
    )  # fmt: skip
    told = []
    with measuring(trial, Quiet()) as measure:
        found = climb(
            trial, [40.0, 1.0], parse_gate("ttft p95 < 300ms"), measure,
            lambda arm, step: told.append((step.rate, arm)),
        )  # fmt: skip
    assert told == [
        (1.0, "round_robin"), (1.0, "prefix_cost"), (40.0, "round_robin"), (40.0, "prefix_cost"),
    ]  # fmt: skip
    for steps in found.arms.values():
        assert steps[0].value < steps[1].value
    assert len(list((tmp_path / "r").glob("*/manifest.json"))) == 8


def test_a_rate_is_a_workload_of_its_own(workload, tmp_path):
    """Everything else stays, and an arrival without a rate has no ladder."""
    path = at_rate(workload, 2.5, tmp_path / "r")
    assert path.name == "small-rate-2.5.yaml"
    assert load_workload(path).arrival.rate == 2.5
    assert load_workload(path).sessions == load_workload(workload).sessions
    workload.write_text(WORKLOAD.replace("poisson: {rate: 6}", "burst: {size: 3, every: 1}"))
    with pytest.raises(InputError, match=r"small.yaml:6: arrival: expected one of constant"):
        at_rate(workload, 2.5, tmp_path / "r")
