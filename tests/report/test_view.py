import math

import pytest
from fakes_records import failed_row, row, story, written_run

from kvbench.records.reader import write_parquet
from kvbench.records.table import to_frame
from kvbench.records.validity import Limits
from kvbench.report.view import CURVE_POINTS, SCATTER_POINTS, TURNS_SHOWN, name_arms, view_run


@pytest.fixture
def viewed(tmp_path):
    """Return the view of a run of these rows."""

    def view(rows, **changes):
        return view_run(written_run(tmp_path, rows, **changes), Limits())

    return view


def test_a_curve_says_which_share_of_all_turns_needed_at_most_how_long(viewed):
    """Failures are in the denominator: with a quarter failed the curve ends at three quarters."""
    rows = [row(i, first_token_s=i + 0.001 + 0.1 * (i + 1)) for i in range(9)]
    curve = viewed(rows + [failed_row(i) for i in range(9, 12)]).ttft

    assert curve.share[-1] == 0.75
    assert curve.seconds[0] == pytest.approx(0.1)
    assert curve.seconds[-1] == pytest.approx(0.9)
    for seconds, share in zip(curve.seconds, curve.share, strict=True):
        assert seconds == pytest.approx(0.1 * math.ceil(12 * share - 1e-9))


def test_along_the_turns_hit_rates_are_token_weighted_and_medians_exact(viewed):
    """One value per turn number, of exactly the rows of that turn."""
    rows = story("random")
    view = viewed(rows)

    assert view.by_turn.at.tolist() == [1, 2, 3, 4, 5, 6]
    for i, turn in enumerate(range(1, 7)):
        of_turn = [r for r in rows if r.turn == turn]
        prompt = sum(r.prompt_tokens for r in of_turn)
        assert view.by_turn.hit_rate[i] == sum(r.cached_tokens for r in of_turn) / prompt
        assert view.by_turn.ceiling[i] == sum(r.ceiling_tokens for r in of_turn) / prompt
        ttft = sorted(r.ttft_s for r in of_turn)
        assert view.by_turn.ttft_mid[i] == pytest.approx(ttft[20 - 1])
        assert view.by_turn.ttft_low[i] == pytest.approx(ttft[2 - 1])
        assert view.by_turn.ttft_high[i] == pytest.approx(ttft[38 - 1])


def test_along_the_time_every_turn_is_in_exactly_one_stretch(viewed):
    """Stretches are equally long and cover the run from its start to its last turn."""
    rows = [row(i, prompt_tokens=1000, cached_tokens=10 * i) for i in range(100)]
    series = viewed(rows).by_time

    assert series.at.tolist() == pytest.approx(
        [99 / 10, 99 * 3 / 10, 99 * 5 / 10, 99 * 7 / 10, 99 * 9 / 10]
    )
    assert series.hit_rate.tolist() == pytest.approx([0.095, 0.295, 0.495, 0.695, 0.895], abs=0.006)


def test_a_turn_of_which_nothing_is_known_is_nan_and_not_zero(viewed):
    """Unknown hit rate, infinite TTFT."""
    view = viewed([row(0), failed_row(1, turn=2)])

    assert view.by_turn.hit_rate.tolist() == pytest.approx([0.512, math.nan], nan_ok=True)
    assert view.by_turn.ttft_mid.tolist() == pytest.approx([0.2, math.inf])


def test_long_sessions_are_cut_and_say_how_long_they_were(viewed):
    """Fifty turns are drawn; the last turn is still known."""
    view = viewed([row(i, turn=i + 1) for i in range(70)])

    assert view.by_turn.at.max() == TURNS_SHOWN
    assert view.last_turn == 70


def test_the_sample_of_turns_is_bounded_even_and_of_answered_turns_only(viewed):
    """Not the first thousand, and no turn that failed."""
    rows = [row(i, prompt_tokens=10_000, cached_tokens=10_000 - i) for i in range(2500)]
    view = viewed([*rows, failed_row(2500)])

    assert len(view.uncached) == SCATTER_POINTS
    assert (view.uncached.min(), view.uncached.max()) == (0, 2499)
    assert abs(view.uncached.mean() - 1249.5) < 1


def test_the_points_of_a_curve_do_not_grow_with_the_run(viewed):
    """A page of a million rows is no larger than one of a thousand."""
    view = viewed([row(i) for i in range(2500)])

    assert len(view.ttft.seconds) == CURVE_POINTS


def test_names_of_arms_are_unique_and_short(viewed):
    """Also where a name looks like one that was made unique."""
    views = [viewed([row()], arm=arm) for arm in ("a", "a", "a (2)", "x" * 90)]

    assert list(name_arms(views)) == ["a", "a (2)", "a (2) (2)", "x" * 40]


def test_failures_carry_the_first_message_of_their_kind(viewed):
    """In order of how often they happened."""
    rows = [
        failed_row(0, "http", error_message="first"),
        failed_row(1, "cut", error_message=None),
        failed_row(2, "http", error_message="second"),
    ]

    assert [(f.kind, f.turns, f.example) for f in viewed(rows).failures] == [
        ("http", 2, "first"),
        ("cut", 1, None),
    ]


def test_the_views_numbers_are_those_of_its_rows(viewed):
    """The summary in a view is the summary of the run."""
    rows = story(sessions=5)
    view = viewed(rows)

    assert view.summary.ttft.count == len(rows)
    assert view.summary.hits.cached_tokens == to_frame(rows)["cached_tokens"].sum()
    assert view.reasons == ()


def test_which_file_the_rows_are_read_from_does_not_show(tmp_path):
    """Row files or Parquet: the same view."""
    folder = written_run(tmp_path, story("random", sessions=6))
    before = view_run(folder, Limits())
    write_parquet(folder)
    folder.rows_path(0).unlink()
    after = view_run(folder, Limits())

    assert after.summary == before.summary
    assert after.slowest == before.slowest
    assert after.ttft.seconds.tolist() == before.ttft.seconds.tolist()
    assert after.by_time.hit_rate.tolist() == before.by_time.hit_rate.tolist()
