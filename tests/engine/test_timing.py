"""The time model: its terms, and that a hit never costs more than a miss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.profiles import NAMES, profile
from kvbench.engine.scheduler import Engine
from kvbench.engine.timing import StepTime
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.errors import InputError

PLAIN = StepTime(
    overhead_s=1.0, weights_s=10.0, token_s=2.0, pair_s=0.5, context_s=0.25, sequence_s=0.125
)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        pytest.param([(1, 0)], 1 + 0.125 + 10 + 1 * 0.5 + 1 * 0.25, id="a first token alone"),
        pytest.param([(1, 7)], 1 + 0.125 + 10 + 8 * 0.5 + 8 * 0.25, id="a decode reads all of it"),
        pytest.param(
            [(8, 0)], 1 + 0.125 + 16 + 36 * 0.5 + 8 * 0.25, id="a prefill beyond the weights"
        ),
        pytest.param(
            [(1, 7), (2, 4)],
            1 + 0.25 + 10 + (8 + 5 + 6) * 0.5 + (8 + 6) * 0.25,
            id="a decode and a chunk share the weights",
        ),
    ],
)
def test_a_step_is_the_sum_of_its_terms(work, seconds):
    """Written out by hand, with constants that are exact in binary."""
    assert PLAIN.step_seconds(work) == seconds


def test_a_device_twice_as_fast_halves_everything():
    """For demonstrations that must not take all day."""
    work = [(1, 9), (5, 3)]
    assert PLAIN.faster(2).step_seconds(work) == PLAIN.step_seconds(work) / 2


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_constants_that_are_no_durations_are_refused(value):
    """By name."""
    with pytest.raises(InputError, match="token_s: expected 0 or more seconds"):
        StepTime(0, 0, value, 0, 0, 0)


seconds = st.floats(0, 1e-2, allow_subnormal=False)
times = st.builds(StepTime, seconds, seconds, seconds, seconds, seconds, seconds)


@given(times, st.integers(2, 400), st.data())
def test_a_step_with_more_cached_is_never_longer(time, prompt, data):
    """A cached token moves from "to compute" to "context"."""
    fewer = data.draw(st.integers(0, prompt - 1))
    more = data.draw(st.integers(fewer, prompt - 1))
    assert time.prefill_seconds(prompt, more) <= time.prefill_seconds(prompt, fewer) * (1 + 1e-12)


def seconds_to_answer(engine, request, now=0.0):
    """Return how long an idle engine takes for a request."""
    engine.add(request)
    began = now
    while engine.has_work:
        now = engine.step(now).ends
    return now - began


@given(times, st.integers(1, 120), st.integers(8, 64))
def test_on_an_idle_engine_a_hit_is_never_slower_than_the_same_request_as_a_miss(
    time, prompt, budget
):
    """Law 9, over whole requests and chunked prompts."""
    config = EngineConfig(64, 4, max_num_batched_tokens=budget, max_model_len=200)
    engine = Engine(config, time)
    request = EngineRequest("a", list(range(prompt)), 3, lambda _: 1)
    miss = seconds_to_answer(engine, request)
    hit = seconds_to_answer(engine, request)
    assert hit <= miss * (1 + 1e-12)


def test_the_profile_of_qwen3_32b_on_two_h100_meets_what_was_published():
    """Prompt tokens a second, an idle pod's token, a full pod's token, size of the cache."""
    known = profile("qwen3-32b-tp2-h100")
    assert 8192 / known.time.prefill_seconds(8192) == pytest.approx(15_928, rel=0.1)
    assert known.time.step_seconds([(1, 500)]) == pytest.approx(0.011, rel=0.1)
    assert known.time.step_seconds([(1, 7_683)] * 40) == pytest.approx(0.029, rel=0.1)
    assert known.kv_tokens == pytest.approx(307_328, rel=0.05)
    assert known.kv_bytes_per_token == 262_144
    assert known.num_gpu_blocks(16) == known.kv_tokens // 16


def test_smaller_devices_are_slower_in_every_respect():
    """H100, A100, L4 with the same model."""
    h100, a100, l4 = (profile(f"llama-3.1-8b-{name}") for name in ("h100", "a100", "l4"))
    for work in ([(1, 500)], [(8192, 0)], [(1, 2000)] * 100):
        durations = [known.time.step_seconds(work) for known in (h100, a100, l4)]
        assert durations == sorted(durations)
    assert h100.kv_tokens == a100.kv_tokens > 9 * l4.kv_tokens
    assert h100.kv_bytes_per_token == 128 * 1024


def test_an_unknown_profile_is_refused_with_the_nearest_name():
    """All names are in the message."""
    with pytest.raises(InputError, match=", ".join(NAMES)) as caught:
        profile("llama-3.1-8b-h10")
    assert caught.value.hint == "did you mean llama-3.1-8b-h100?"
