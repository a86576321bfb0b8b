"""`kvbench up --engine vllm`: a real vLLM, started, asked, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(180)]


def test_up_starts_a_real_pod_with_what_hits_events_and_usage_need():
    """Asked twice the same, it tells what it had; Ctrl-C ends it."""
    started = [sys.executable, "-m", "kvbench.cli.main", "up", "--engine=vllm", "--model=tiny"]
    command = [*started, "--pods=1", f"--vllm-command={os.environ['REAL_VLLM']} {{port}}"]
    prompt = {"model": "tiny", "prompt": "one two three " * 40, "max_tokens": 1}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            router = next(
                m[1] for line in process.stdout if (m := re.match(r"router +(\S+)", line))
            )
            request = urllib.request.Request(
                f"{router}/v1/completions",
                json.dumps(prompt).encode(),
                {"content-type": "application/json"},
            )
            usages = []
            for _ in range(2):
                with urllib.request.urlopen(request) as answer:
                    usages.append(json.load(answer)["usage"])
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()

    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, (usages[0]["prompt_tokens"] - 1) // 32 * 32]
