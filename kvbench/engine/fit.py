"""Fitting the time model to a pod: from seconds that were measured to the constants of `StepTime`.

**What is fitted.** An observation is the work of one or several steps and the seconds they took
together: a TTFT is the steps of a prefill plus what a request costs outside the engine, `request_s`
(HTTP, queues between processes, the first token's way back) and `request_token_s` per token of its
prompt, cached or not (reading and hashing it); a gap between tokens is one step of decodes.
Everything is linear in the constants but the maximum of weights and compute. It changes
sides at the *knee*, weights_s / token_s tokens. So the knee is tried at every place between the
steps that were measured, each time the rest is linear, and what explains the measurements best is
taken.

**How.** Non-negative least squares (Lawson and Hanson 1974, chapter 23) on relative errors: a
millisecond is much of a short step and nothing of a long one. Errors beyond `HUBER` count by their
size, not its square (Huber 1964, by reweighting), so that a few spoilt measurements do not bend the
rest.

**What it cannot tell apart.** A constant that no measurement depends on comes out as 0: where all
prompts are shorter than the knee there is no `token_s` to be seen, and where a model is so small
that attention costs nothing, `pair_s` and `context_s` vanish. Use a profile within the range it was
fitted in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvbench.engine.timing import StepTime
from kvbench.errors import InvalidMeasurementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

Step: TypeAlias = tuple[tuple[int, int], ...]
"""The work of a step, as `StepTime.step_seconds` takes it."""

HUBER = 0.1
"""Relative error up to which errors count by their square."""

FEWEST = 12
"""Observations below which nothing is fitted: there are eight constants."""

_ROUNDS = 25
_MOST_KNEES = 48


@dataclass(frozen=True, slots=True)
class Observation:
    """Something measured.

    Attributes:
        steps: What the engine did meanwhile.
        seconds: How long it took.
        prompt_tokens: Of the prompt whose TTFT it is; 0 where it is a gap between tokens.
    """

    steps: tuple[Step, ...]
    seconds: float
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """The constants that explain the observations best.

    Attributes:
        time: Of the engine's steps.
        request_s: Of a request outside the engine, seconds.
        request_token_s: The same per token of its prompt.
    """

    time: StepTime
    request_s: float
    request_token_s: float

    def predict(self, observation: Observation) -> float:
        """Return the seconds that the model expects for what was observed."""
        steps = sum(self.time.step_seconds(step) for step in observation.steps)
        tokens = observation.prompt_tokens
        return steps + (self.request_s + tokens * self.request_token_s if tokens else 0.0)


def prefill_steps(tokens: int, cached: int, budget: int) -> tuple[Step, ...]:
    """Return the steps of a prompt alone in the engine, in chunks of at most `budget` tokens."""
    return tuple(((min(budget, tokens - start), start),) for start in range(cached, tokens, budget))


def decode_step(contexts: Sequence[int]) -> tuple[Step, ...]:
    """Return the one step in which sequences of these lengths each decode a token."""
    return (tuple((1, context) for context in contexts),)


def fit(observations: Sequence[Observation]) -> Fitted:
    """Return the constants that explain the observations best.

    Raises:
        InvalidMeasurementError: There are too few observations.
    """
    if len(observations) < FEWEST:
        raise InvalidMeasurementError(
            f"expected at least {FEWEST} measurements to fit eight constants, got "
            f"{len(observations)}",
            hint="ask for more with --points",
        )
    seconds = np.array([observation.seconds for observation in observations])
    best: tuple[float, Fitted] | None = None
    for knee in _knees(observations):
        features = np.array([_features(o, knee) for o in observations])
        fitted = _fitted(_robust(features, seconds))
        predicted = np.array([fitted.predict(o) for o in observations])
        loss = _huber(predicted / seconds - 1)
        if best is None or loss < best[0]:
            best = (loss, fitted)
    assert best is not None
    return best[1]


def errors(fitted: Fitted, observations: Sequence[Observation]) -> Array:
    """Return the relative error of each prediction: 0.1 is ten per cent too long."""
    return np.array([fitted.predict(o) / o.seconds - 1 for o in observations])


def _knees(observations: Sequence[Observation]) -> list[float]:
    """Return the places at which the knee may be: between any two sizes of steps, and outside."""
    sizes = np.unique(
        [sum(new for new, _ in step) for observation in observations for step in observation.steps]
    )
    between = np.sqrt(sizes[1:] * sizes[:-1])
    chosen = (
        between[np.linspace(0, len(between) - 1, _MOST_KNEES).astype(int)]
        if len(between) > _MOST_KNEES
        else between
    )
    return [0.0, *chosen, float("inf")]


def _features(observation: Observation, knee: float) -> tuple[float, ...]:
    """Return what each constant is multiplied by, if the knee is at `knee` tokens.

    In the order of `StepTime`'s fields, then of the others of `Fitted`.
    """
    overheads = weights = tokens = pairs = context = sequences = 0.0
    for step in observation.steps:
        size = sum(new for new, _ in step)
        overheads += 1
        sequences += len(step)
        weights += size <= knee
        tokens += size if size > knee else 0
        pairs += sum(new * (before + (new + 1) / 2) for new, before in step)
        context += sum(new + before for new, before in step)
    prompt = float(observation.prompt_tokens)
    return overheads, weights, tokens, pairs, context, sequences, float(prompt > 0), prompt


def _fitted(constants: Array) -> Fitted:
    """Return the constants by name."""
    *steps, request, request_token = (float(constant) for constant in constants)
    return Fitted(StepTime(*steps), request, request_token)


def _robust(features: Array, seconds: Array) -> Array:
    """Return non-negative constants that minimise Huber's loss of the relative errors."""
    relative = features / seconds[:, None]
    weight = np.ones(len(seconds))
    constants = np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        found = nnls(relative * root[:, None], root)
        if np.allclose(found, constants, rtol=1e-4, atol=0):
            break
        constants = found
        error = np.abs(relative @ constants - 1)
        weight = HUBER / np.maximum(error, HUBER)
    return constants


def _huber(error: Array) -> float:
    """Return Huber's loss of relative errors."""
    size = np.abs(error)
    return float(np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2)).sum())


def nnls(matrix: Array, target: Array) -> Array:
    """Return x ≥ 0 that minimises |matrix · x - target|, by Lawson and Hanson's algorithm.

    Columns that are 0 get 0. Columns are scaled first, so constants may differ by many powers of
    ten.
    """
    scale = np.linalg.norm(matrix, axis=0)
    usable = scale > 0
    scaled = matrix / np.where(usable, scale, 1.0)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(target)))
    passive = np.zeros(matrix.shape[1], dtype=bool)
    found = np.zeros(matrix.shape[1])
    for _ in range(3 * matrix.shape[1]):
        gradient = scaled.T @ (target - scaled @ found)
        gradient[passive | ~usable] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        passive[int(np.argmax(gradient))] = True
        found = _step_inside(scaled, target, passive, found)
    return np.where(usable, found / np.where(usable, scale, 1.0), 0.0)


def _step_inside(matrix: Array, target: Array, passive: NDArray[np.bool_], found: Array) -> Array:
    """Move to the least squares of the passive columns, giving up those that would turn negative.

    Changes `passive` where a column is given up.
    """
    while True:
        free = np.zeros_like(found)
        free[passive] = np.linalg.lstsq(matrix[:, passive], target, rcond=None)[0]
        negative = passive & (free <= 0)
        if not negative.any():
            return free
        share = found[negative] / (found[negative] - free[negative])
        found = found + float(share.min()) * (free - found)
        passive &= found > 1e-14
        found = np.where(passive, found, 0.0)
        if not passive.any():
            return found
