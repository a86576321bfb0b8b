"""Calibration: measure a pod, fit the time model, and test it on what it has not seen.

Rules:

- One pod, idle, asked directly: a router would mix pods, and other traffic would be in all numbers.
- A salt of the calibration's own keeps out what other requests left in the cache.
- Everything is measured in several rounds, and a point counts with the *lower quartile* of its
  times: other work on the machine only ever adds to them, and not in all rounds. How far the upper
  quartile lies above it is the scatter, which must be small.
- Held-out turns are never shown to the fit; what is reported is how well *they* are predicted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine import fit
from kvbench.engine.experiment import DECODED, Decode, Prefill
from kvbench.engine.profiles import Profile
from kvbench.errors import InvalidMeasurementError
from kvbench.stack.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.engine.experiment import Experiment
    from kvbench.engine.fit import Fitted, Observation
    from kvbench.stack.bench import Asks
    from kvbench.stack.facts import Facts


MOST_SCATTER = 0.25
"""Scatter of the same prompt's TTFTs above which a calibration is not valid."""

MOST_ERROR = 0.25
"""Error of held-out predictions above which it is not."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt that was measured.

    Attributes:
        tokens: Of the prompt.
        cached: Found in the cache, as the pod said.
        ttft_s: Time to first token, lower quartile.
        predicted_s: By the model that was fitted.
        held_out: Whether the fit has not seen it.
    """

    tokens: int
    cached: int
    ttft_s: float
    predicted_s: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came out.

    Attributes:
        facts: Of the pod.
        fitted: The constants.
        turns: All prompts, measured and predicted.
        gaps: Of each batch: its size, its contexts' mean length, seconds between tokens, predicted.
        scatter: How far the upper quartile of a prompt's TTFTs lies above the lower, as a share;
            the median over all prompts. What scatters much was not measured on an idle machine.
    """

    facts: Facts
    fitted: Fitted
    turns: tuple[Turn, ...]
    gaps: tuple[tuple[int, int, float, float], ...]
    scatter: float

    def problem(self) -> InvalidMeasurementError | None:
        """Return why the result must not be trusted, None if it may."""
        if self.scatter > MOST_SCATTER:
            return InvalidMeasurementError(
                f"TTFTs of the same prompt scatter by {self.scatter:.0%} between rounds "
                f"(at most {MOST_SCATTER:.0%} is good): something else was at work there",
                hint="calibrate again when the pod's machine is idle",
            )
        if (error := self.error(held_out=True)) > MOST_ERROR:
            return InvalidMeasurementError(
                f"held-out TTFTs are predicted with a median error of {error:.0%} "
                f"(at most {MOST_ERROR:.0%} is good): the profile does not describe this pod",
                hint="was the machine idle all the time, and is --max-num-batched-tokens right?",
            )
        return None

    def error(self, *, held_out: bool) -> float:
        """Return the median absolute relative error of the TTFT: of held-out or of fitted turns."""
        sizes = [
            abs(turn.predicted_s / turn.ttft_s - 1)
            for turn in self.turns
            if turn.held_out == held_out
        ]
        return statistics.median(sizes)


async def calibrate(
    facts: Facts,
    asker: Asks,
    experiment: Experiment,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> Calibration:
    """Measure, fit and test.

    Args:
        facts: Of the pod.
        asker: Carries prompts to it; its salt keeps them apart from all others in the pod's cache.
        experiment: What to measure.
        seed: Of the prompts' words.
        on_progress: Called with how many measurements are done, and of how many.

    Raises:
        TargetError: The pod fails, or does not say what was cached.
        InvalidMeasurementError: Too little could be measured.
    """
    bench = Bench(facts, seed, asker)
    await bench.warm_up(experiment.prefix)
    notes: list[_Notes] = [_Notes() for _ in experiment.points]
    order = [number for numbers in experiment.rounds for number in numbers]
    for done, number in enumerate(order):
        on_progress(done, len(order))
        point, note = experiment.points[number], notes[number]
        if isinstance(point, Prefill):
            cached, ttft = await bench.prefill(point)
            note.cached.append(cached)
            note.seconds.append(ttft)
        elif (gap := await bench.decode(point)) is not None:
            note.seconds.append(gap)
    on_progress(len(order), len(order))
    return _fitted(facts, [*zip(experiment.points, notes, strict=True)])


@dataclass(slots=True)
class _Notes:
    """What was measured at a point, a number for each round; `cached` for prefills only."""

    seconds: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    @property
    def low(self) -> float:
        """The lower quartile of the seconds."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def scatter(self) -> float:
        """How far the upper quartile lies above the lower, as a share of it."""
        return float(np.quantile(self.seconds, 0.75)) / self.low - 1

    def observation(self, point: Prefill | Decode, budget: int) -> Observation:
        """Return what it says to the fit."""
        if isinstance(point, Decode):
            contexts = [point.context + DECODED // 2] * point.sequences
            return fit.Observation(fit.decode_step(contexts), self.low)
        cached = statistics.mode(self.cached)
        pairs = zip(self.cached, self.seconds, strict=True)
        self.seconds = [seconds for found, seconds in pairs if found == cached]
        tokens = point.cached + point.new
        steps = fit.prefill_steps(tokens, cached, budget)
        return fit.Observation(steps, self.low, prompt_tokens=tokens)


def _fitted(facts: Facts, measured: Sequence[tuple[Prefill | Decode, _Notes]]) -> Calibration:
    """Fit what may be seen, and predict everything."""
    observed = [
        (point, note.observation(point, facts.budget)) for point, note in measured if note.seconds
    ]
    prefills = [(point, seen) for point, seen in observed if isinstance(point, Prefill)]
    decodes = [seen for point, seen in observed if isinstance(point, Decode)]
    fitted = fit.fit([*(seen for point, seen in prefills if not point.held_out), *decodes])
    return Calibration(
        facts=facts,
        fitted=fitted,
        turns=tuple(_turn(fitted, seen, held_out=point.held_out) for point, seen in prefills),
        gaps=tuple(_gap(fitted, seen) for seen in decodes),
        scatter=statistics.median(note.scatter for _, note in measured if note.cached),
    )


def profile_of(calibration: Calibration, name: str) -> Profile:
    """Return what was fitted as a profile."""
    return Profile(
        name=name,
        time=calibration.fitted.time,
        request_s=calibration.fitted.request_s,
        request_token_s=calibration.fitted.request_token_s,
        kv_bytes_per_token=calibration.facts.kv_bytes_per_token,
        kv_tokens=calibration.facts.bounds.kv_tokens,
    )


def _turn(fitted: Fitted, observation: Observation, *, held_out: bool) -> Turn:
    """Return a prompt with its prediction."""
    return Turn(
        tokens=observation.prompt_tokens,
        cached=observation.steps[0][0][1],
        ttft_s=observation.seconds,
        predicted_s=fitted.predict(observation),
        held_out=held_out,
    )


def _gap(fitted: Fitted, observation: Observation) -> tuple[int, int, float, float]:
    """Return a batch with its prediction."""
    (step,) = observation.steps
    return len(step), step[0][1], observation.seconds, fitted.predict(observation)
