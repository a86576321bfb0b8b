"""Objectives and windows."""

from __future__ import annotations

import pytest

from kvbench.alerts import pack
from kvbench.alerts.settings import Objective, Settings, Windows, duration, parse_objective
from kvbench.errors import InputError
from kvbench.metrics import engines


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m"), (3600, "1h"), (259200, "3d"), (15, "15s"), (90, "90s")]
)
def test_a_duration_is_written_as_prometheus_writes_it(seconds, text):
    """In the largest unit that is whole."""
    assert duration(seconds) == text


def test_an_objective_between_buckets_is_refused_with_the_bounds_beside_it():
    """Nobody could count what is within it."""
    with pytest.raises(InputError) as error:
        pack.files(Settings(ttft=Objective(3.0, 0.95)))

    assert error.value.message == (
        "--ttft: expected a bound of an engine's buckets, got 3 s; "
        "nearest: 2 or 4 (sglang), 2.5 or 5 (vllm)"
    )
    assert "--custom-histogram-buckets" in (error.value.hint or "")


def test_an_objective_that_nothing_can_miss_is_refused():
    """Its budget would be nothing."""
    with pytest.raises(InputError, match="expected a share between 0 and 1, got 1"):
        pack.files(Settings(itl=Objective(0.1, 1.0)))


def test_an_objective_is_typed_as_people_say_it():
    """Share, then limit."""
    assert parse_objective("--ttft", "99.5%<250ms") == Objective(0.25, 0.995)
    with pytest.raises(InputError, match='--ttft: expected an objective such as "95%<1s"'):
        parse_objective("--ttft", "fast")


def test_scaled_windows_keep_their_shape_and_are_whole_seconds():
    """A test runs the same rules in seconds; no window shrinks to nothing."""
    scaled = Windows().scaled(1 / 60)

    assert (scaled.now_s, scaled.past_s, scaled.young_s, scaled.quick_s) == (5, 60, 15, 2)
    assert [burn.factor for burn in scaled.fast_burns] == [14.4, 6]
    assert Windows().scaled(1e-6).now_s == 2


@pytest.mark.parametrize(
    ("objective", "quantity"), [(Settings().ttft, engines.TTFT), (Settings().itl, engines.ITL)]
)
def test_the_default_objectives_are_bounds_of_every_engine(objective, quantity):
    """So that a mixed fleet is counted whole."""
    assert all(objective.seconds in metric.buckets for metric in quantity.metrics)
