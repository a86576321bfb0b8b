"""A run while it is on, as its master sees it."""

from fakes_live import live, row, tally

from kvbench.load.exposition import exposition
from kvbench.load.live import MOST_POINTS


def test_workers_are_added_up_and_what_is_of_the_moment_is_the_last_word():
    """Turns add; open turns are what each worker said last."""
    first, second, later = tally(row()), tally(row(), row()), tally(row())
    first.in_flight, second.in_flight, later.in_flight = 4, 3, 1
    run = live(first, second)
    run.hear("0", later)

    shown = run.snapshot()

    assert (shown["filed"], shown["in_flight"]) == (4, 1 + 3)
    assert shown["all"]["turns"] == 4
    assert [line["name"] for line in shown["turns"]] == ["turn 1"]
    assert [line["name"] for line in shown["pods"]] == ["a"]


def test_intended_and_achieved_turns_are_those_of_all_workers():
    """Each worker says how many it has had since the run began."""
    first, second, later = tally(row()), tally(row()), tally(row())
    first.due, second.due, later.due = 5, 7, 9
    first.begun, second.begun, later.begun = 5, 6, 8
    run = live(first, second)
    run.hear("0", later)

    text = exposition(run).decode()

    assert "kvbench_load_due_turns_total 16.0" in text
    assert "kvbench_load_begun_turns_total 14.0" in text


def test_a_point_has_the_turns_since_the_last_one():
    """Rates are per second of the point."""
    run = live(tally(row(), row()))
    run.tick(0.5, least=1.0)
    run.tick(2.0, least=1.0)
    run.hear("0", tally(row(cached_tokens=0)))
    run.tick(3.0, least=1.0)

    first, second = run.snapshot()["points"]

    assert (first["at_s"], first["turns_per_s"], first["hit_rate"]) == (2.0, 1.0, 0.48)
    assert (second["at_s"], second["turns_per_s"], second["hit_rate"]) == (3.0, 1.0, 0.0)


def test_a_long_run_has_no_more_points_than_a_short_one():
    """Neighbours are merged, and no turn is lost from the chart."""
    run = live()
    for second in range(5 * MOST_POINTS):
        run.hear("0", tally(row()))
        run.tick(second + 1.0)

    assert len(run._points) <= MOST_POINTS
    assert sum(point.cell.turns for point in run._points) == 5 * MOST_POINTS
    assert run.snapshot()["points"][-1]["at_s"] == 5 * MOST_POINTS


def test_another_run_begins_with_nothing():
    """Only the ids are new."""
    run = live(tally(row()))
    run.tick(1.0)
    run.begin("run-2", "rag", "http://pod")

    shown = run.snapshot()

    assert (shown["run"], shown["state"], shown["filed"]) == ("run-2", "preparing", 0)
    assert shown["points"] == shown["turns"] == []
