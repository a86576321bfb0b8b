import math

import numpy as np
import pytest
from fakes_gates import evidence_of
from fakes_records import replace, story
from rich.console import Console

from kvbench.cli.compare import ratio_table
from kvbench.errors import InputError
from kvbench.gates.baseline import Fingerprint
from kvbench.gates.compare import ArmRun, check_rounds, judge_rounds, ratios
from kvbench.gates.grammar import parse_gate
from kvbench.gates.measure import Measurement
from kvbench.records.intervals import Interval

GATE = parse_gate("ttft p95 no worse than baseline")


def _run(value, arm="a", what="ttft p95", interval=None, **fingerprint):
    found = {what: Measurement(value, interval, 300, 60)}
    return ArmRun(f"run-{arm}", arm, (), Fingerprint(seed=1, **fingerprint), found)


def _rounds(a, b, what="ttft p95"):
    return [(_run(x, "a", what), _run(y, "b", what)) for x, y in zip(a, b, strict=True)]


def _ratio(a, b, text="ttft p95"):
    gate = parse_gate(f"{text} no worse than baseline")
    (found,) = ratios(_rounds(a, b, str(gate.measure)), [gate])
    return found


def test_a_ratio_is_the_geometric_mean_with_students_interval_over_rounds():
    """Of four rounds with logarithms 0.04, 0.06, 0.05, 0.05."""
    logs = np.array([0.04, 0.06, 0.05, 0.05])
    found = _ratio([1.0] * 4, np.exp(logs).tolist())
    reach = 3.182 * logs.std(ddof=1) / 2
    assert found.ratio == pytest.approx(math.exp(0.05))
    assert found.interval.low == pytest.approx(math.exp(0.05 - reach), rel=1e-3)
    assert found.interval.high == pytest.approx(math.exp(0.05 + reach), rel=1e-3)
    assert found.said == "worse"


@pytest.mark.parametrize(
    ("a", "b", "what", "said"),
    [
        ([1.0, 1.1, 0.9], [0.5, 0.6, 0.5], "ttft p95", "better"),
        ([0.5, 0.5, 0.6], [0.8, 0.8, 0.9], "hit_rate", "better"),
        ([0.8, 0.8, 0.9], [0.5, 0.5, 0.6], "hit_rate", "worse"),
        ([1.0, 1.2, 0.9], [1.1, 0.9, 1.0], "ttft p95", "not told apart"),
        ([0.7, 0.8, 0.9], [0.7, 0.8, 0.9], "hit_rate", "equal"),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], "errors", "equal"),
        ([0.0, 0.0, 0.0], [0.3, 0.31, 0.3], "errors", "worse"),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.1], "errors", "not told apart"),
    ],
)
def test_what_a_difference_means_depends_on_which_way_is_better(a, b, what, said):
    """And a difference to nothing has no ratio, and is seen all the same."""
    assert _ratio(a, b, what).said == said


def test_a_gate_holds_the_second_arm_against_the_first():
    """With its margin, and the noise between rounds."""
    a, b = [1.0, 1.1, 1.2, 1.3], [1.051, 1.154, 1.26, 1.367]
    for text, decided in (
        ("ttft p95 no worse than baseline", "failed"),
        ("ttft p95 no worse than baseline + 5%", "cannot tell"),
        ("ttft p95 no worse than baseline + 7%", "passed"),
        ("ttft p95 no worse than baseline + 100ms", "passed"),
    ):
        verdict = judge_rounds(_rounds(a, b), [parse_gate(text)])
        assert verdict.decided == decided, verdict.gates[0].said
    assert verdict.arm == "b against a"


def test_a_single_round_has_the_uncertainty_of_its_sessions_and_says_so():
    """Both together: √2 times that of one."""
    wide = Interval(0.9, 1.1)
    rounds = [(_run(1.0, "a", interval=wide), _run(1.0, "b", interval=wide))]
    verdict = judge_rounds(rounds, [GATE])
    assert verdict.notes == ["a single round: the noise between runs is unknown"]
    assert verdict.gates[0].high == pytest.approx(1 + 0.1 * math.sqrt(2))


def test_a_percentile_without_an_upper_end_has_a_ratio_without_one():
    """The p99 of few turns may be anything, and a table has no room for 300 digits."""
    rounds = [(_run(1.0, interval=Interval(0.5, math.inf)), _run(0.5, "b", interval=None))]
    (found,) = ratios(rounds)
    assert (found.interval.low, found.interval.high) == (0.0, math.inf)
    assert found.said == "not told apart"
    table = ratio_table([found], rounds)
    assert list(table.columns[4].cells) == ["0.000 to ∞"]


def test_a_comparison_of_policies_fits_eighty_columns():
    """Nothing is cut off: what a difference means stands last."""
    wide = Interval(0.95, 1.05)
    what = "uncached_balance max/mean"
    rounds = [
        (_run(1.0, "round_robin", what, wide), _run(1.01, "prefix_cost", what, wide)),
        (_run(1.0, "round_robin", what, wide), _run(0.99, "prefix_cost", what, wide)),
    ]
    console = Console(width=80, record=True)
    console.print(ratio_table(ratios(rounds, [parse_gate(f"{what} < 2")]), rounds))
    text = console.export_text()
    assert "uncached_balance" in text
    assert "not told apart" in text
    assert "to 1.1" in text


def test_runs_of_different_plans_are_not_compared():
    """The two of a round must differ in nothing but the arm."""
    with pytest.raises(InputError, match="model: run-a has x, run-b has y"):
        check_rounds([(_run(1.0, "a", model="x"), _run(1.0, "b", model="y"))])
    with pytest.raises(InputError, match="at least one round"):
        check_rounds([])
    with pytest.raises(InputError, match="got a gate for one run"):
        judge_rounds(_rounds([1.0], [1.0]), [parse_gate("ttft p95 < 1s")])


def test_an_invalid_run_makes_the_comparison_invalid():
    """Whatever its numbers say."""
    late = evidence_of([replace(r, sent_s=r.intended_s + 0.3) for r in story()])
    good = evidence_of(story())
    verdict = judge_rounds([(ArmRun.of(good), ArmRun.of(late))] * 2, [GATE])
    assert (verdict.decided, verdict.exit_code) == ("invalid", 4)
    assert "the load generator was late" in verdict.reasons[0]


def test_an_infinite_percentile_is_worse_than_any_limit():
    """Failures reach it: no interval is needed."""
    rounds = _rounds([1.0, 1.0], [math.inf, 1.0])
    assert judge_rounds(rounds, [GATE]).decided == "failed"
    assert judge_rounds(_rounds([math.inf, 1.0], [1.0, 1.0]), [GATE]).decided == "invalid"


def _noisy(chance, slower):
    """Return a run's p95: of 1,500 turns in 300 sessions, on a machine 1 % off each time."""
    machine = math.exp(0.01 * chance.standard_normal())
    apart = np.repeat(0.1 * chance.standard_normal(300), 5)
    times = slower * machine * np.exp(0.3 * chance.standard_normal(1500) + apart)
    return float(np.quantile(times, 0.95, method="inverted_cdf"))


def test_of_200_comparisons_of_an_arm_with_itself_at_most_the_stated_share_fails():
    """2.5 of 100 fail by chance: of 200 hardly ever more than 10."""
    chance = np.random.default_rng(7)
    failed = 0
    for _ in range(200):
        a, b = ([_noisy(chance, 1.0) for _ in range(4)] for _ in range(2))
        failed += judge_rounds(_rounds(a, b), [GATE]).decided == "failed"
    assert failed <= 10


def test_a_true_regression_of_five_percent_is_found_by_eight_rounds():
    """In at least 8 of 10 comparisons, with 1 % of noise between runs."""
    chance = np.random.default_rng(8)
    found = 0
    for _ in range(50):
        a, b = ([_noisy(chance, slower) for _ in range(8)] for slower in (1.0, 1.05))
        found += judge_rounds(_rounds(a, b), [GATE]).decided == "failed"
    assert found >= 40
