"""Logs of a vLLM that did not start, and what is to be done."""

from __future__ import annotations

import pytest

from kvbench.stack.trouble import known_trouble

SAID = {
    "OSError: org/x is not a local folder and is not a valid model identifier listed on": "model",
    "Error: Model 'org/x' not found.\nIf the repo is private, make sure": "model",
    "Error: Access denied. Model 'org/x' requires approval.": "licence",
    "Error: Revision not found in model 'org/x'.": "revision",
    "Error: Local entry not found. [Errno -3] Temporary failure in name resolution": "hub",
    "OSError: You are trying to access a gated repo.\nMake sure to have access": "licence",
    "OSError: We couldn't connect to 'https://example.org' to load the files": "hub",
    "(3.0 GiB KV is needed, which is larger than the available KV cache memory": "length",
    "ValueError: No available memory for the cache blocks. Try increasing": "weights",
    "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than": "free GPU",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate": "free GPU",
    "RuntimeError: No CUDA GPUs are available": "no GPU",
    "OSError: [Errno 98] Address already in use": "port",
    "vllm: error: unrecognized arguments: --enable-prompt-tokens-details": "older",
    "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).": "--block-size 32",
}


@pytest.mark.parametrize("log", SAID)
def test_the_line_that_says_why_is_found_in_the_log(log):
    """Wherever it stands."""
    advice = known_trouble(f"Traceback …\n(EngineCore pid=7) ERROR {log}\nRuntimeError: failed\n")

    assert SAID[log] in advice


def test_what_is_not_known_is_not_explained():
    """No guess: the person reads the log."""
    assert known_trouble("RuntimeError: Engine core initialization failed.") is None
