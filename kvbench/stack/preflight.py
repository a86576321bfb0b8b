"""Is the target ready for what is about to be measured? Decided from what it said, before a turn.

Looked at: whether its tokenizer and chat template are ours, whether its window holds every turn,
whether prefix caching is on, and whether `usage` tells how much of a prompt was cached. What makes
a run worthless stops it, with the flag that turns on what is missing; what only makes the ceiling
approximate is a note. (That the target answers and has the model is seen before: `look_at`.)

Pure: `kvbench.stack.probe` asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.errors import InputError, KvbenchError, TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence

ANYWAY = "pass --no-preflight to measure all the same"


@dataclass(frozen=True, slots=True)
class PodSays:
    """What a pod answered to two equal requests, and what its metrics say.

    Attributes:
        pod: Its name.
        caching: Whether prefix caching is on, by its own `cache_config_info`; None: not said.
        trouble: Why a request was not answered; None where both were.
        told: Whether the second answer said how many prompt tokens were cached.
        cached_tokens: How many, of the second; 0 where it did not say.
        prompt_tokens: Of the second; None where it did not say.
    """

    pod: str
    caching: bool | None = None
    trouble: str | None = None
    told: bool = True
    cached_tokens: int = 0
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a target.

    Attributes:
        window: Tokens of its context window; None: not said.
        tokenizes: Whether it has `/tokenize` to compare with.
        differences: How its tokenizer or template differs from ours, in sentences.
        pods: What its pods said.
    """

    window: int | None = None
    tokenizes: bool = True
    differences: Sequence[str] = ()
    pods: Sequence[PodSays] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run would be worthless, what to do about it, and whose it is."""

    sentence: str
    hint: str
    blame: type[KvbenchError] = TargetError


def notes(seen: Seen) -> list[str]:
    """Return what a person should know before believing the ceiling."""
    if not seen.tokenizes:
        return ["the target has no /tokenize: it was not checked whether its tokenizer is ours"]
    return [
        f"{difference}: lengths and the ceiling are approximate; --tokenizer takes the model's own"
        for difference in seen.differences
    ]


def problems(seen: Seen, turns: Sequence[int]) -> list[Problem]:
    """Return why the run should not begin.

    Args:
        seen: The target.
        turns: Tokens of each turn, prompt and answer together.
    """
    found = [_pod_problem(pod) for pod in seen.pods]
    return [*_window(seen.window, turns), *(problem for problem in found if problem)]


def _window(window: int | None, turns: Sequence[int]) -> list[Problem]:
    longer = [tokens for tokens in turns if window is not None and tokens > window]
    if not longer:
        return []
    return [
        Problem(
            f"{len(longer)} of {len(turns)} turns are longer than the model's window: up to "
            f"{max(longer):,} tokens with their answers, window {window:,}",
            f"start vLLM with --max-model-len {max(longer)}, or let the workload keep to its "
            "window (context: {drop_oldest: {window: …}})",
            InputError,
        )
    ]


def _pod_problem(pod: PodSays) -> Problem | None:
    """Return what is wrong with a pod; the first that is, since the rest follows from it."""
    if pod.trouble is not None:
        return Problem(f"{pod.pod} does not answer as it should: {pod.trouble}", "see its log")
    if pod.caching is False:
        return Problem(
            f"{pod.pod} has prefix caching off", "start vLLM with --enable-prefix-caching"
        )
    if not pod.told:
        return Problem(
            f"{pod.pod} does not say how many prompt tokens were cached",
            "start vLLM with --enable-prompt-tokens-details",
        )
    if not pod.cached_tokens:
        return Problem(
            f"{pod.pod} found nothing of a prompt that it had just been asked"
            + ("" if pod.prompt_tokens is None else f" ({pod.prompt_tokens} tokens)"),
            "start vLLM with --enable-prefix-caching; if something stands in between that spreads "
            "requests over pods, pass the URL of one of them, or of a kvbench router",
        )
    return None


def refusal(found: Sequence[Problem]) -> KvbenchError | None:
    """Return problems as one error; None if there are none. The first one gives the exit code."""
    if not found:
        return None
    sentences = list(dict.fromkeys(problem.sentence for problem in found))
    hints = list(dict.fromkeys(problem.hint for problem in found))
    message = (
        sentences[0]
        if len(sentences) == 1
        else "\n  - ".join(["the target is not ready for this:", *sentences])
    )
    return found[0].blame(message, hint="; ".join([*hints, ANYWAY]))
