"""The driver keeps to the engine's time line, late or not."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from wire import scene, until

from kvbench.clock import WallClock
from kvbench.engine.scheduler import Engine
from kvbench.engine.timing import StepTime
from kvbench.engine.values import EngineConfig, EngineRequest, StepResult, TokenOutput
from kvbench.pod.driver import MAX_BEHIND, Driver, Lateness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Steps:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.began: list[StepResult] = []
        self.done: list[StepResult] = []

    def step_began(self, result: StepResult) -> None:
        """Remember."""
        self.began.append(result)

    def step_done(self, result: StepResult) -> None:
        """Remember."""
        assert result is self.began[-1]
        self.done.append(result)


class JumpingClock(WallClock):
    """The machine's clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.added = 0.0

    def now(self) -> float:
        """Return the moved time."""
        return super().now() + self.added


def request(name: str, tokens: int, prompt: int = 8) -> EngineRequest:
    """Return a request of so many tokens."""
    return EngineRequest(name, range(prompt), tokens, next_token=lambda i: i)


@asynccontextmanager
async def driving(
    step_s: float = 0.002, clock: WallClock | None = None, **config: int
) -> AsyncIterator[tuple[Driver, Steps]]:
    """Drive an engine whose steps take so long, for the length of a block."""
    steps = Steps()
    engine = Engine(
        EngineConfig(**{"num_gpu_blocks": 100, "block_size": 4, "max_model_len": 300} | config),
        StepTime(step_s, 0, 0, 0, 0, 0),
    )
    driver = Driver(engine, clock or WallClock(), steps)
    task = asyncio.ensure_future(driver.run())
    try:
        yield driver, steps
    finally:
        task.cancel()


@scene
async def test_steps_follow_one_another_without_a_gap():
    """Each begins exactly where the one before ended, however late that was handed out."""
    got: list[tuple[TokenOutput, float]] = []

    async with driving() as (driver, steps):
        driver.submit(request("a", 10), lambda output, due: got.append((output, due)))
        await until(lambda: len(got) == 10)
    for before, after in itertools.pairwise(steps.done):
        assert after.began == before.ends
    assert [output.token_ids for output, _ in got] == [(i,) for i in range(10)]
    assert got[-1][0].finish_reason == "length"
    assert [due for _, due in got] == [step.ends for step in steps.done]


@scene
async def test_an_idle_engine_begins_when_it_is_asked():
    """And not in the past."""
    got: list[TokenOutput] = []

    async with driving() as (driver, steps):
        driver.submit(request("a", 1), lambda output, _: got.append(output))
        await until(lambda: len(got) == 1)
        now = WallClock().now()
        driver.submit(request("b", 1), lambda output, _: got.append(output))
        await until(lambda: len(got) == 2)
    assert steps.done[1].began >= now


@scene
async def test_a_cancelled_request_hears_nothing_more():
    """Its blocks are free; the others go on."""
    heard: list[str] = []

    async with driving() as (driver, _):
        driver.submit(request("a", 200), lambda output, _: heard.append(output.request_id))
        driver.submit(request("b", 5), lambda output, _: heard.append(output.request_id))
        await until(lambda: "b" in heard)
        driver.cancel("a")
        driver.cancel("a")
        heard_of_a = heard.count("a")
        await until(lambda: heard.count("b") == 5)
        assert heard.count("a") == heard_of_a
        assert driver.engine.kv_cache_usage == 0


@scene
async def test_a_receiver_that_fails_costs_its_request_only(caplog: pytest.LogCaptureFixture):
    """It is logged, and the engine goes on."""
    heard: list[str] = []

    def fail(*_: object) -> None:
        """Fail."""
        raise ZeroDivisionError

    async with driving() as (driver, _):
        driver.submit(request("a", 50), fail)
        driver.submit(request("b", 5), lambda output, _: heard.append(output.request_id))
        await until(lambda: len(heard) == 5)
        assert not driver.engine.has_work
    assert "request a: its answer could not be sent" in caplog.text


@scene
async def test_a_time_line_far_behind_the_clock_jumps():
    """After the machine slept, tokens are not poured out to make up for it."""
    clock = JumpingClock()
    got: list[float] = []

    async with driving(step_s=0.01, clock=clock) as (driver, _):
        driver.submit(request("a", 4), lambda _, due: got.append(due))
        await until(lambda: len(got) == 1)
        clock.added = 2 * MAX_BEHIND
        await until(lambda: len(got) == 4)
        assert driver.lateness.jumps == 1
        assert driver.lateness.worst_s >= MAX_BEHIND
    assert got[2] - got[1] >= 2 * MAX_BEHIND - 0.1 or got[1] - got[0] >= 2 * MAX_BEHIND - 0.1
    assert got[3] - got[2] < MAX_BEHIND


def test_lateness_is_summed_up():
    """Mean, worst, and how many were within which bound."""
    late = Lateness()
    for seconds in (0.0, 0.0015, 3.0):
        late.add(seconds)
    summary = late.summary()
    assert summary["steps"] == 3
    assert summary["worst_s"] == 3.0
    assert summary["mean_s"] == pytest.approx(1.0005)
    assert late.within[0.001] == 1
    assert late.within[0.002] == 1
    assert sum(late.within.values()) == 2
