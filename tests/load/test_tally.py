"""What rows add up to while a run is on."""

from fakes_live import row, tally

from kvbench.load.outcome import STOPPED
from kvbench.load.tally import MOST_PODS, MOST_TURNS, OTHERS, Tally


def close_to(value):
    """Return bounds that a bucketed value lies in."""
    return lambda found: value * 0.999 <= found <= value * 1.021


def test_times_and_tokens_are_those_of_the_rows():
    """The hit rate by the server's count of tokens, the ceiling by the plan's."""
    whole = tally(row(), row(cached_tokens=0, ceiling_tokens=0)).all

    assert (whole.turns, whole.failed, whole.completion_tokens) == (2, 0, 6)
    assert (whole.hit_rate, whole.ceiling) == (48 / 200, 64 / 160)
    assert close_to(0.1)(whole.ttft.percentile(0.5))
    assert close_to(0.02)(whole.itl.percentile(0.99))
    assert close_to(0.14)(whole.e2e.percentile(0.5))
    assert close_to(0.001)(whole.lateness.percentile(0.5))


def test_what_was_cached_and_is_not_told_is_in_neither_rate():
    """Unknown is not zero."""
    whole = tally(row(), row(cached_tokens=None)).all

    assert (whole.turns, whole.prompt_tokens, whole.hit_rate) == (2, 100, 0.48)


def test_a_failed_turn_counts_and_has_no_times():
    """It has an outcome of its own."""
    made = tally(row(), row(error="cut", first_token_s=None))

    assert made.outcomes == {"ok": 1, "cut": 1}
    assert (made.all.turns, made.all.failed, made.all.ttft.count) == (2, 1, 1)


def test_a_turn_that_was_never_sent_is_an_outcome_and_nothing_else():
    """It has no pod, and no lateness."""
    made = tally(row(error="not_sent", sent_s=None))

    assert made.outcomes == {"not_sent": 1}
    assert made.all.turns == 0


def test_a_turn_that_was_cut_by_stopping_is_nobodys_failure():
    """It is told among the outcomes."""
    made = tally(row(), row(error="cut", error_message=STOPPED))

    assert made.outcomes == {"ok": 1, "cut": 1}
    assert (made.all.turns, made.all.failed) == (1, 0)


def test_turns_and_pods_have_lines_of_their_own_in_bounded_number():
    """Late turns share a line, and so do pods beyond the bound."""
    many = [row(turn=1 + i, pod=f"pod-{i}") for i in range(200)]

    made = tally(*many)

    assert sorted(made.turns) == list(range(1, MOST_TURNS + 1))
    assert made.turns[MOST_TURNS].turns == 200 - MOST_TURNS + 1
    assert len(made.pods) == MOST_PODS + 1
    assert made.pods[OTHERS].turns == 200 - MOST_PODS


def test_parts_merge_to_the_whole_through_the_wire():
    """As the master adds up what workers tell."""
    rows = [row(turn=i % 3 + 1, pod="ab"[i % 2]) for i in range(20)]
    whole, sums = tally(*rows), Tally()

    for part in (rows[:7], rows[7:]):
        sums.merge(Tally.decode(tally(*part).encode()))

    assert sums.outcomes == whole.outcomes
    assert sums.all.ttft.buckets == whole.all.ttft.buckets
    assert {turn: cell.turns for turn, cell in sums.turns.items()} == {1: 7, 2: 7, 3: 6}
    assert {pod: cell.cached_tokens for pod, cell in sums.pods.items()} == {"a": 480, "b": 480}


def test_judged_and_degenerate_answers_are_counted_by_context_through_the_wire():
    """Short answers are not judged, but for those that are none."""
    loop = {"degeneration": "loop", "completion_tokens": 40, "context_ratio": 0.95}
    made = tally(row(completion_tokens=40), row(), row(**loop), row(**loop))
    made.merge(Tally.decode(tally(row(error="http", degeneration="overflow")).encode()))

    assert made.judged == {"unknown": 1, "90-100": 2, "over": 1}
    assert made.degenerate == {("loop", "90-100"): 2, ("overflow", "over"): 1}
