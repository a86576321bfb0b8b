import math

import numpy as np
import pytest
from fakes_gates import evidence_of
from fakes_records import replace, row, story

from kvbench.errors import InputError, InvalidMeasurementError
from kvbench.gates.baseline import (
    Baseline,
    Known,
    make_baseline,
    read_baseline,
    smallest_change,
    write_baseline,
)
from kvbench.gates.grammar import parse_gate
from kvbench.gates.judge import judge
from kvbench.records.manifest import Machine, Workload

GATE = "ttft p95 no worse than baseline + 5%"


def _run(noise=0, factor=1.0, **changes):
    """Return one run of the plan `story`, on a machine whose speed differs a little each time."""
    speed = factor * math.exp(0.01 * np.random.default_rng(noise).standard_normal())
    rows = [replace(r, first_token_s=r.sent_s + speed * r.ttft_s) for r in story(sessions=30)]
    return evidence_of(rows, **changes)


@pytest.fixture(scope="module")
def known():
    """A baseline of five runs that differ by about 1 %."""
    runs = [_run(seed) for seed in range(5)]
    return Baseline("baseline.json", make_baseline(runs, [parse_gate("ttft p90 < 1s")]))


def _decided(known, evidence, gate=GATE):
    return judge(evidence, [parse_gate(gate)], baseline=known).gates[0].decided


def test_one_more_run_of_the_same_kind_passes_and_a_slower_one_fails(known):
    """Its own noise tells the two apart: 12 % is more than 5 % and noise, 5 % cannot be told."""
    assert _decided(known, _run(10)) == "passed"
    assert _decided(known, _run(11, factor=1.12)) == "failed"
    assert _decided(known, _run(12, factor=1.05)) == "cannot tell"


def test_a_true_regression_of_five_percent_is_found(known):
    """Without a margin; and of runs as good as the baseline's few fail."""
    gate = "ttft p95 no worse than baseline"
    worse = [_decided(known, _run(s, 1.05), gate) for s in range(20, 30)]
    same = [_decided(known, _run(s), gate) for s in range(30, 50)]
    assert worse.count("failed") >= 7
    assert same.count("failed") <= 2


def test_values_that_never_differ_are_compared_to_the_digit(known):
    """The hit rate of a fixed plan has no noise, and needs no margin."""
    gate = "hit_rate no worse than baseline"
    assert _decided(known, _run(10), gate) == "passed"
    rows = [
        replace(r, cached_tokens=r.cached_tokens - 16 * (r.index == 9)) for r in story(sessions=30)
    ]
    less = evidence_of(rows)
    assert _decided(known, less, gate) == "failed"


def test_a_baseline_survives_its_file(known, tmp_path):
    """Written and read it is the same, and it is small."""
    path = tmp_path / "baseline.json"
    write_baseline(path, known.file)
    assert read_baseline(path).file == known.file
    assert path.stat().st_size < 6000
    assert list(known.file.values)[-1] == "ttft p90"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": Workload(sha256="cd" * 32)}, "workload: the baseline has abababababab…"),
        ({"model": "other"}, "model: the baseline has qwen3-8b, the run"),
        ({"block_size": 32}, "block size: the baseline has 16, the run"),
        ({"seed": 2}, "seed: the baseline's runs have 1, the run has 2"),
    ],
)
def test_another_question_is_refused(known, changes, message):
    """Numbers of different plans, models or pods are not compared."""
    with pytest.raises(InputError) as caught:
        _decided(known, _run(10, **changes))
    assert caught.value.message.startswith(f"baseline.json: {message}")


def test_times_of_another_machine_are_not_judged_and_counts_are(known):
    """Unless it is asked for; the verdict says so either way."""
    run = _run(10, machine=Machine(cpus=96, platform="Linux", python="3.12"))
    gates = [parse_gate(GATE), parse_gate("hit_rate no worse than baseline")]
    verdict = judge(run, gates, baseline=known)
    assert [g.decided for g in verdict.gates] == ["invalid", "passed"]
    assert verdict.notes == [
        "the baseline was made with machine none, this run with 96 CPUs, Linux, Python 3.12"
    ]
    across = judge(run, gates, baseline=Baseline("b", known.file, across=True))
    assert [g.decided for g in across.gates] == ["passed", "passed"]


def test_runs_that_are_not_alike_or_not_valid_make_no_baseline():
    """Neither does no run."""
    late = [replace(r, sent_s=r.intended_s + 0.3) for r in story()]
    with pytest.raises(InvalidMeasurementError, match="is not valid: the load generator was late"):
        make_baseline([evidence_of(late)])
    with pytest.raises(InputError, match=r"model: .* has model qwen3-8b, .* has model other"):
        make_baseline([_run(), _run(model="other")])
    with pytest.raises(InputError, match=r"arm: .* is of prefix, .* of another"):
        make_baseline([_run(), _run(arm="another")])
    with pytest.raises(InputError, match="at least one run"):
        make_baseline([])


def test_a_measure_that_a_baseline_lacks_is_said(known):
    """With the way to a baseline that has it."""
    with pytest.raises(InputError, match="ttft p42 is not in it") as caught:
        _decided(known, _run(10), "ttft p42 no worse than baseline")
    assert "--gates FILE" in caught.value.hint


def test_a_relative_gate_without_a_baseline_is_an_error():
    """It cannot be judged, and must not pass."""
    with pytest.raises(InputError, match="expected a baseline for this gate"):
        _decided(None, _run())


def test_a_single_run_is_a_baseline_whose_noise_is_taken_from_sessions():
    """Both sides are then as uncertain as the new run is by itself."""
    one = Baseline("b", make_baseline([_run()]))
    run = _run(1)
    result = judge(run, [parse_gate("ttft p50 no worse than baseline + 50%")], baseline=one).gates[
        0
    ]
    single = judge(run, [parse_gate("ttft p50 < 10s")]).gates[0]
    half = max(single.high - single.measured, single.measured - single.low)
    assert result.high - result.measured == pytest.approx(half * math.hypot(1, 1.5))


def test_the_smallest_change_is_what_a_prediction_interval_says():
    """Student's t of four degrees of freedom is 2.776."""
    known = Known.of([98.0, 99.0, 100.0, 101.0, 102.0])
    assert known.deviation == pytest.approx(math.sqrt(2.5))
    assert smallest_change(known) == pytest.approx(2.776 * math.sqrt(2.5 * 1.2) / 100, rel=1e-3)
    assert smallest_change(Known.of([5.0])) is None


def test_a_file_that_is_no_baseline_is_said_with_its_place(tmp_path):
    """Missing, broken, too new."""
    path = tmp_path / "baseline.json"
    with pytest.raises(InputError, match="cannot be read"):
        read_baseline(path)
    path.write_text("{}")
    with pytest.raises(InputError, match="not a baseline"):
        read_baseline(path)
    write_baseline(path, make_baseline([evidence_of([row(0)])]))
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(InputError, match="expected at most 1, got 99"):
        read_baseline(path)
