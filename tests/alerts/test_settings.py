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
    with pytest.raises(InputError, match="expected a share between 0 % and 100 %, got 100 %"):
        pack.files(Settings(itl=Objective(0.1, 1.0)))


def test_an_objective_is_typed_as_people_say_it():
    """Share, then limit."""
    assert parse_objective("--ttft", "99.5%<250ms") == Objective(0.25, 0.995)
    assert parse_objective("--ttft", " 95 % < 1 ") == Objective(1.0, 0.95)


@pytest.mark.parametrize("text", ["fast", "0.99<1", "99<1s", "99%", "%<1s", "99%<", "99%1s"])
def test_what_is_no_objective_is_refused_and_a_share_without_its_sign_is_none(text):
    """0.99 could be a share or 0.99 %."""
    with pytest.raises(InputError) as error:
        parse_objective("--ttft", text)

    assert error.value.message == (f'--ttft: expected an objective such as "95%<1s", got {text!r}')
    assert error.value.hint == "the share is in per cent, with its sign"


def test_a_share_out_of_range_is_named_as_it_was_typed():
    """In per cent."""
    with pytest.raises(InputError, match=r"--ttft: expected .* 0 % and 100 %, got 101 %"):
        Settings(ttft=parse_objective("--ttft", "101%<1s")).check()


def test_an_objective_that_only_one_engine_can_be_held_to_is_said_to_be_one():
    """With what both have; a bound of both is silent."""
    assert Settings().cautions() == []
    assert Settings(ttft=Objective(2.0, 0.99), itl=Objective(0.06, 0.99)).cautions() == [
        f"{flag}: vllm has no bucket that ends at {bound} s: alerts on this objective cannot "
        f"watch vllm pods; all engines have {near} s"
        for flag, bound, near in (("--ttft", 2, "1 or 10"), ("--itl", 0.06, "0.025 or 0.1"))
    ]


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
