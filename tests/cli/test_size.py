"""`kvbench size` prints what the arithmetic says, for people and for programs."""

import json

import pytest
import typer
from typer.testing import CliRunner

from kvbench.cli.size import size
from kvbench.errors import InputError


def show(*arguments):
    """Run the verb and return what it printed."""
    app = typer.Typer()
    app.command()(size)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def facts(*arguments):
    """Run the verb and return its JSON."""
    return json.loads(show(*arguments, "--json"))


def test_the_often_quoted_gibibyte():
    """Llama 2 7B, 2,048 tokens, 16 bits: exactly 2³⁰ bytes."""
    assert "2,048 tokens       1.00 GiB (1,073,741,824 bytes), up to 128 blocks" in show(
        "llama-2-7b"
    )
    assert facts("llama-2-7b")["bytes_of_tokens"] == 2**30
    assert facts("llama-2-7b", "--kv-cache-dtype", "fp8")["bytes_of_tokens"] == 2**29


def test_a_budget_is_shown_with_its_parts_and_what_another_utilization_would_leave():
    """The sum of the parts is what vLLM is given, and 0.7 leaves less than 0.92."""
    arguments = ("llama-3-8b", "--gpu", "h100-80", "--max-model-len", "8192")
    budget = facts(*arguments)["budget"]
    parts = budget["weights"] + sum(budget["overhead"].values())

    assert int(0.92 * budget["memory"]) - parts == facts(*arguments)["kv_cache_bytes_per_gpu"]
    high = facts(*arguments)["capacity"]["tokens"]
    low = facts(*arguments, "--gpu-memory-utilization", "0.7")["capacity"]["tokens"]
    assert f"shrinks the cache: 0.7 gives {low:,} tokens, 0.92 {high:,} tokens." in show(*arguments)


def test_a_given_number_of_bytes_needs_no_estimate():
    """As vLLM's `--kv-cache-memory-bytes`: blocks are what divides."""
    shown = facts("llama-3-8b", "--kv-cache-memory", "4GiB", "--max-model-len", "8192")

    assert shown["budget"] is None
    assert shown["capacity"] == {"blocks": 2048, "concurrency": 4.0, "tokens": 32768}


def test_gpus_share_heads_and_replicate_a_latent_vector():
    """Said in words where the same bytes lie on several GPUs."""
    shown = show("deepseek-v3", "--tensor-parallel-size", "8")

    assert "549 KiB = 68.6 KiB on each GPU" in shown
    assert "every key and value lies on 8 GPUs" in shown


def test_layers_that_forget_are_shown_with_their_groups():
    """Gemma 3 27B: seven groups, and what they waste."""
    shown = show("gemma-3-27b")

    assert "window: 52 of 62 layers keep 1,024 tokens" in shown
    assert "7 groups of layers draw blocks; 11.4% of the bytes are padding" in shown


def test_the_list_names_each_model_with_its_cost():
    """One line a model, under a heading."""
    lines = show("--list").splitlines()

    assert lines[1].split() == ["llama-2-7b", "6.74", "B", "MHA", "512", "KiB", "–"]
    assert len(lines) > 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((), "MODEL: missing", id="no model"),
        pytest.param(("llama-3-8b", "--gpu", "h1000"), "--gpu: expected one of", id="no such GPU"),
        pytest.param(
            ("llama-3-8b", "--gpu-memory", "much"),
            '--gpu-memory: expected a size such as "80GiB"',
            id="no size",
        ),
        pytest.param(
            ("llama-3-8b", "--gpu", "l4", "--gpu-memory-utilization", "92"),
            "gpu_memory_utilization: expected more than 0 and at most 1, got 92",
            id="percent for a share",
        ),
        pytest.param(
            ("llama-3.1-70b", "--gpu", "l4"), "the model does not fit: each GPU has", id="too large"
        ),
        pytest.param(
            ("llama-3-8b", "--gpu", "l4", "--weights", "1GiB", "--max-model-len", "999999"),
            "max_model_len: one sequence of 999,999 tokens needs 122.07 GiB",
            id="too long",
        ),
    ],
)
def test_a_mistake_is_an_input_error(arguments, message):
    """The command line turns it into one sentence and exit code 2."""
    with pytest.raises(InputError) as caught:
        show(*arguments)

    assert message in caught.value.message
