"""Calibration recovers what a pod is made of: exactly in virtual time, nearly over the wire."""

import asyncio
from pathlib import Path

import pytest

from kvbench.engine import fit
from kvbench.engine.experiment import Bounds, design
from kvbench.engine.fit import Fitted, Observation
from kvbench.engine.profiles import profile
from kvbench.errors import InvalidMeasurementError, TargetError
from kvbench.kvcache.blocks import block_hashes
from kvbench.openai.wire import PromptTokensDetails, Usage
from kvbench.stack.ask import Answer
from kvbench.stack.calibrate import calibrate, profile_of
from kvbench.stack.facts import Facts

TRUTH = Fitted(profile("llama-3.1-8b-l4").time, request_s=4e-3, request_token_s=0.6e-6)
FACTS = Facts(
    url="http://pod",
    model="tiny",
    bounds=Bounds(longest=8000, block_size=16, most_sequences=16, kv_tokens=40_000),
    budget=2048,
    budget_known=True,
    kv_bytes_per_token=1024,
)


class VirtualPod:
    """Answers as a pod of known constants would, without any time passing.

    Args:
        noise: For each answer in turn, a factor on its TTFT; repeated.
        by_length: A factor on its TTFT by the length of the prompt.
        forgets: Whether nothing is ever cached.
        tells: Whether it says what was cached.
        merges: Whether its chunks bring four tokens each.
    """

    def __init__(
        self, noise=(1.0,), *, by_length=lambda _: 1.0, forgets=False, tells=True, merges=False
    ):
        self.asked = 0
        self._by_length = by_length
        self._noise, self._forgets, self._tells, self._merges = noise, forgets, tells, merges
        self._cache: set[int] = set()
        self._open: list[int] = []

    async def ask(self, prompt, max_tokens):
        """Answer a prompt, in a batch with whoever asks in the same turn of the loop."""
        self.asked += 1
        cached = self._cached(prompt)
        steps = fit.prefill_steps(len(prompt), cached, FACTS.budget)
        first = TRUTH.predict(Observation(steps, 0.0, len(prompt)))
        first *= self._noise[self.asked % len(self._noise)] * self._by_length(len(prompt))
        self._open.append(len(prompt) + max_tokens // 2)
        await asyncio.sleep(0)
        gap = TRUTH.time.step_seconds(fit.decode_step(self._open)[0])
        await asyncio.sleep(0)
        self._open.clear()
        details = PromptTokensDetails(cached_tokens=cached) if self._tells else None
        answer = Answer(sent=0.0, status=200, body_at=first, complete=True)
        fold = answer.fold
        stride = 4 if self._merges else 1
        fold.chunk_stamps = [first + gap * i for i in range(0, max_tokens, stride)]
        fold.first_token, fold.done = first, True
        fold.usage = Usage(completion_tokens=max_tokens, prompt_tokens_details=details)
        return answer

    def _cached(self, prompt):
        """Return how many tokens are cached, and cache the prompt."""
        hashes = block_hashes(prompt, 16)
        found = 0
        while found < (len(prompt) - 1) // 16 and hashes[found] in self._cache:
            found += 1
        if not self._forgets:
            self._cache.update(hashes)
        return 16 * found


def silent(_done, _total):
    """Tell nobody about progress."""


def calibrated(pod, points=40, rounds=4):
    """Calibrate a virtual pod."""
    experiment = design(points, rounds, FACTS.bounds, 0)
    return asyncio.run(calibrate(FACTS, pod, experiment, 0, silent))


def test_a_pod_without_noise_is_recovered_exactly():
    """Chunks, cached prefixes and batches are all understood as they were."""
    result = calibrated(VirtualPod())
    found = profile_of(result, "mine")

    assert result.error(held_out=True) < 1e-6
    assert result.scatter == pytest.approx(0, abs=1e-9)
    assert result.problem() is None
    assert found.time.token_s == pytest.approx(TRUTH.time.token_s)
    assert found.time.weights_s == pytest.approx(TRUTH.time.weights_s)
    assert found.request_s == pytest.approx(TRUTH.request_s)
    assert (found.name, found.kv_tokens, found.kv_bytes_per_token) == ("mine", 40_000, 1024)
    assert any(turn.cached > 1000 for turn in result.turns)


def test_progress_is_told_from_the_first_measurement_to_the_last():
    """So that a bar can be drawn."""
    told = []
    experiment = design(20, 3, FACTS.bounds, 0)

    asyncio.run(calibrate(FACTS, VirtualPod(), experiment, 0, lambda *at: told.append(at)))

    assert told == [(done, 60) for done in range(61)]


def test_answers_that_are_disturbed_now_and_then_change_nothing():
    """Every seventh takes three times as long: the lower quartile of nine rounds has none."""
    result = calibrated(VirtualPod(noise=(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0)), rounds=9)

    assert result.error(held_out=True) < 0.01
    assert result.problem() is None


def test_a_pod_that_scatters_is_measured_and_not_trusted():
    """A third of the answers take twice as long, a third four times."""
    problem = calibrated(VirtualPod(noise=(1.0, 2.0, 4.0))).problem()

    assert isinstance(problem, InvalidMeasurementError)
    assert "scatter by" in problem.message


def test_a_model_that_does_not_describe_the_pod_is_not_trusted():
    """The same factor in every round scatters nowhere: only what was held out shows it."""
    experiment = design(40, 4, FACTS.bounds, 0)
    strange = VirtualPod(by_length=lambda tokens: (1.0, 3.0, 9.0)[tokens % 3])

    problem = asyncio.run(calibrate(FACTS, strange, experiment, 0, silent)).problem()

    assert isinstance(problem, InvalidMeasurementError)
    assert "held-out TTFTs are predicted" in problem.message


def test_a_pod_without_a_cache_is_fitted_to_what_it_did():
    """What was planned as cached was computed, and is taken as that."""
    result = calibrated(VirtualPod(forgets=True))

    assert {turn.cached for turn in result.turns} == {0}
    assert result.error(held_out=True) < 1e-6


def test_a_pod_that_does_not_say_what_was_cached_is_refused_with_the_flag():
    """A missing number is unknown, never 0."""
    with pytest.raises(TargetError, match="does not report cached_tokens") as caught:
        calibrated(VirtualPod(tells=False))

    assert "--enable-prompt-tokens-details" in (caught.value.hint or "")


def test_batches_whose_chunks_bring_several_tokens_are_left_out():
    """Their gaps are not between tokens."""
    assert calibrated(VirtualPod(merges=True)).gaps == ()


@pytest.mark.stack  # measures time, so nothing may run beside it
def test_a_simulated_pod_is_recovered_over_the_wire(tmp_path):
    """Its own constants, within what a busy machine allows, from start to profile."""
    from kvbench.clock import WallClock
    from kvbench.stack.ask import Asker
    from kvbench.stack.facts import look
    from kvbench.stack.process import Child, kvbench_command

    command = kvbench_command(
        *("pod", "--port", "0", "--exit-with-parent", "--profile", "llama-3.1-8b-l4"),
        *("--time-scale", "0.2", "--max-model-len", "2048"),
    )
    with Child("pod", command, Path(tmp_path) / "pod.log") as child:
        url = child.wait_ready(30)
        facts = look(url, None, 4, None)
        asker = Asker(url, facts.model, "salt", WallClock())
        experiment = design(20, 2, facts.bounds, 0)
        result = asyncio.run(calibrate(facts, asker, experiment, 0, silent))

    truth = profile("llama-3.1-8b-l4").time.faster(5)
    assert result.fitted.time.token_s == pytest.approx(truth.token_s, rel=0.2)
    step = result.fitted.time.step_seconds([(1, 64)])
    assert step == pytest.approx(truth.step_seconds([(1, 64)]), rel=0.2)
