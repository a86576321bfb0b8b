"""Calibration: measure a pod, fit the time model, and test it on what it has not seen.

Rules:

- One pod, idle, asked directly: a router would mix pods, and other traffic would be in all numbers.
- A salt of the calibration's own keeps out what other requests left in the cache.
- Held-out turns are never shown to the fit; what is reported is how well *they* are predicted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.engine import fit
from kvbench.engine.experiment import Prefill, design
from kvbench.engine.profiles import Profile
from kvbench.errors import InvalidMeasurementError
from kvbench.stack.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.engine.fit import Fitted, Observation
    from kvbench.stack.bench import Asks
    from kvbench.stack.facts import Facts


MOST_SCATTER = 0.15
"""Scatter of the same prompt's TTFTs above which a calibration is not valid."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt that was measured.

    Attributes:
        tokens: Of the prompt.
        cached: Found in the cache, as the pod said.
        ttft_s: Median time to first token.
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
        scatter: How far TTFTs of the same point lie from their median, as a share of it; the median
            over all points. What scatters much was not measured on an idle machine.
    """

    facts: Facts
    fitted: Fitted
    turns: tuple[Turn, ...]
    gaps: tuple[tuple[int, int, float, float], ...]
    scatter: float

    def problem(self) -> InvalidMeasurementError | None:
        """Return why the result must not be trusted, None if it may."""
        if self.scatter <= MOST_SCATTER:
            return None
        return InvalidMeasurementError(
            f"TTFTs of the same prompt scatter by {self.scatter:.0%} around their median "
            f"(at most {MOST_SCATTER:.0%} is good): something else was at work there",
            hint="calibrate again when the pod's machine is idle",
        )

    def error(self, *, held_out: bool) -> float:
        """Return the median absolute relative error of the TTFT: of held-out or of fitted turns."""
        sizes = [
            abs(turn.predicted_s / turn.ttft_s - 1)
            for turn in self.turns
            if turn.held_out == held_out
        ]
        return statistics.median(sizes)


async def calibrate(
    facts: Facts, asker: Asks, points: int, seed: int, on_progress: Callable[[int, int], None]
) -> Calibration:
    """Measure, fit and test.

    Args:
        facts: Of the pod.
        asker: Carries prompts to it; its salt keeps them apart from all others in the pod's cache.
        points: How many prompts and batches to measure.
        seed: Of their lengths, order and words.
        on_progress: Called with how many points are done, and of how many.

    Raises:
        InputError: The points are too few, or the pod too small.
        TargetError: The pod fails, or does not say what was cached.
        InvalidMeasurementError: Too little could be measured.
    """
    experiment = design(points, facts.bounds, seed)
    bench = Bench(facts, seed, asker)
    await bench.warm_up(experiment.prefix)
    prefills: list[tuple[Prefill, Observation]] = []
    decodes: list[Observation] = []
    for done, point in enumerate(experiment.points):
        on_progress(done, len(experiment.points))
        if isinstance(point, Prefill):
            prefills.append((point, await bench.prefill(point)))
        elif (gap := await bench.decode(point)) is not None:
            decodes.append(gap)
    on_progress(len(experiment.points), len(experiment.points))
    seen = [observation for point, observation in prefills if not point.held_out]
    fitted = fit.fit([*seen, *decodes])
    return Calibration(
        facts=facts,
        fitted=fitted,
        turns=tuple(_turn(fitted, observation, point.held_out) for point, observation in prefills),
        gaps=tuple(_gap(fitted, observation) for observation in decodes),
        scatter=statistics.median(bench.scatter),
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


def _turn(fitted: Fitted, observation: Observation, held_out: bool) -> Turn:
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
