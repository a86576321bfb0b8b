import pytest
from fakes_records import failed_row, row, story, written_run

from kvbench.records.validity import Limits
from kvbench.report import words
from kvbench.report.view import name_arms, view_run


@pytest.fixture
def arms(tmp_path):
    """Return the arms of runs of these rows, by name."""

    def view(**runs):
        folders = [written_run(tmp_path, rows, arm=arm) for arm, rows in runs.items()]
        return name_arms([view_run(folder, Limits()) for folder in folders])

    return view


def _after(seconds):
    return [row(i, first_token_s=i + 0.001 + seconds) for i in range(20)]


def test_the_verdict_claims_only_what_was_checked(arms, tmp_path):
    """Without a plan and without a ceiling only the generator's time is known."""
    rows = [row(i, ceiling_tokens=None) for i in range(5)]
    blind = view_run(written_run(tmp_path, rows, planned_turns=None), Limits())

    assert words.checked({"a": blind}, Limits()) == "Turns were sent on time (p99 within 100 ms)."
    assert words.checked(arms(a=_after(0.1)), Limits()) == (
        "Turns were sent on time (p99 within 100 ms), every planned turn left its row, "
        "no more was cached than a cold start explains."
    )


def test_the_headline_of_one_run_is_its_hit_rate_and_its_median(arms):
    """Beside the ceiling, always."""
    assert [str(said) for said in words.headline(arms(a=_after(0.25)))] == [
        "51.2 % of the prompt tokens were cached; 76.8 % were possible.",
        "Half of the turns had their first token within 250 ms.",
    ]


def test_the_headline_of_several_runs_is_what_differs(arms):
    """The fastest against the slowest, the most cached against the least."""
    misses = [row(i, cached_tokens=24, first_token_s=i + 1.001) for i in range(20)]

    assert [
        str(said) for said in words.headline(arms(a=_after(0.25), b=_after(0.5), c=misses))
    ] == [
        "Median TTFT: a 250 ms, c 1 s (4 times as long).",
        "Prompt tokens that had to be computed: a 48.8 %, c 97.6 % (2 times as much).",
    ]


def test_nothing_is_compared_with_a_run_that_answered_nothing(arms):
    """No infinite ratio, no division by nothing."""
    dead = [failed_row(i) for i in range(20)]

    assert words.headline(arms(a=_after(0.25), b=dead)) == []
    assert [str(said) for said in words.ttft(arms(b=dead))] == [
        "b: 20 of 20 turns failed and count as never answered."
    ]


def test_quantiles_that_failed_are_not_given_as_times(arms):
    """With a tenth failed the median is a time, the p95 is none."""
    rows = [*_after(0.25)[:18], failed_row(18), failed_row(19)]

    assert [str(said) for said in words.ttft(arms(a=rows))] == [
        "a: 50 % within 250 ms.",
        "a: 2 of 20 turns failed and count as never answered.",
    ]


def test_pods_that_count_other_tokens_than_the_plan_are_told(arms):
    """The ceiling is the plan's, so it is only approximate then."""
    rows = [row(i, planned_prompt_tokens=800) for i in range(20)]

    assert [str(said) for said in words.hit_rate(arms(a=rows))][1:] == [
        "a: the pods counted 25.0 % more prompt tokens than the plan: the ceiling is approximate."
    ]


def test_traffic_is_told_beside_an_even_share(arms):
    """Half the turns on one of two pods is even; by tokens it need not be."""
    rows = [row(i, pod=f"pod-{i % 2}", cached_tokens=0 if i % 2 else 900) for i in range(20)]

    one, other = map(str, words.traffic(arms(a=rows, b=_after(1.0))))
    assert one == (
        "a: the busiest of 2 pods had 50.0 % of the turns and 90.9 % of the uncached tokens; "
        "even would be 50.0 %."
    )
    assert other == "b: there is one pod, pod-0."


def test_the_cost_of_uncached_tokens_is_told_by_the_extremes(arms):
    """Median of the twentieth with least against that with most."""
    rows = [
        row(i, cached_tokens=1000 - 10 * i, first_token_s=i + 0.101 + 0.01 * i) for i in range(100)
    ]

    assert [str(said) for said in words.uncached(arms(a=rows))] == [
        "a: median 120 ms with at most 40 uncached tokens, 1.06 s with at least 940."
    ]


def test_nothing_is_said_of_the_cost_where_every_turn_is_alike(arms):
    """No difference, no sentence; too few turns, none either."""
    assert words.uncached(arms(a=_after(0.1), b=_after(0.1)[:5])) == []


def test_the_generator_is_told_beside_its_limit(arms):
    """And turns whose first token was read late are said to be upper bounds."""
    rows = [row(i, first_read_chunks=1 + (i < 3)) for i in range(20)]

    late, bounds = map(str, words.lateness(arms(a=rows), 0.1))
    assert late == "a: late by 1 ms at p99 and 1 ms at most; 100 ms is allowed at p99."
    assert bounds == (
        "a: in 3 turns the first token was read together with later ones: their TTFT is an upper "
        "bound."
    )


def test_turn_by_turn_the_first_and_the_last_are_told(arms):
    """Hit rates beside the ceiling of the same turn."""
    said = [str(s) for s in words.hit_rate_by_turn(arms(a=story(sessions=5)))]
    rows = story(sessions=5)
    shares = []
    for turn in (1, 6):
        of_turn = [r for r in rows if r.turn == turn]
        prompt = sum(r.prompt_tokens for r in of_turn)
        cached, ceiling = (
            sum(getattr(r, name) for r in of_turn) / prompt
            for name in ("cached_tokens", "ceiling_tokens")
        )
        shares.append(f"{100 * cached:.1f} % of {100 * ceiling:.1f} % at turn {turn}")

    assert said == [f"a: {shares[0]}, {shares[1]}."]
