"""The verb, as its own process beside pods in theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from contextlib import ExitStack

import pytest

from kvbench import __version__
from kvbench.metrics import exporter as metrics
from kvbench.stack.process import Child, kvbench_command


def sample(url: str, *names: str) -> dict[str, float]:
    """Return the samples of an exposition whose lines begin with one of `names`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(names))
    return {name: float(value) for name, value in pairs}


def test_it_says_where_it_listens_and_ends_with_code_zero_on_sigterm(tmp_path):
    """A pod that is not there yet is no reason not to start."""
    command = kvbench_command("exporter", "--pod", "http://127.0.0.1:9", "--exit-with-parent")
    with Child("exporter", command, tmp_path / "log") as child:
        url = child.wait_ready(30)

        assert sample(url, metrics.UP.name) == {f'{metrics.UP.name}{{pod="127.0.0.1:9"}}': 0.0}
        child.ask_to_stop()
        assert child.wait(10) == 0
    log = (tmp_path / "log").read_text()
    for line in (
        "INFO 127.0.0.1:9 joined",
        f"INFO kvbench {__version__} shows metrics at {url}/metrics",
        "WARNING 127.0.0.1:9: /metrics cannot be read: ",
        "INFO ended: /metrics asked for: 1; looks at pods: ",
    ):
        assert log.count(line) == 1, log


def test_nothing_to_look_at_is_refused_with_a_hint():
    """Exit code 2: the input is wrong."""
    done = subprocess.run(
        kvbench_command("exporter"), capture_output=True, text=True, check=False, timeout=30
    )

    assert done.returncode == 2
    assert "--pod: expected at least one pod, or a --router, got neither" in done.stderr


@pytest.mark.stack
def test_a_pod_that_is_killed_and_started_again_is_a_cold_start(tmp_path):
    """Its age begins anew; its counters go on where they were."""
    pod_flags = ("--time-scale=0", "--num-gpu-blocks=64", "--max-model-len=512")
    with ExitStack() as stack:

        def pod(port: int) -> tuple[Child, str]:
            command = kvbench_command("pod", f"--port={port}", *pod_flags, "--exit-with-parent")
            child = stack.enter_context(Child("pod", command, tmp_path / "pod.log"))
            return child, child.wait_ready(60)

        def ask(url: str) -> None:
            body = json.dumps({"prompt": list(range(5, 105)), "max_tokens": 2}).encode()
            request = urllib.request.Request(
                f"{url}/v1/completions", body, {"content-type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=30).close()

        def shown(metric, wanted) -> float:
            """Return the metric's only sample once it is as wanted."""
            for _ in range(200):
                for name, value in sample(exporter, metric.name).items():
                    if "reset" not in name and wanted(value):
                        return value
                child.wait(0.05)
            pytest.fail(f"{metric.name}: {sample(exporter, metric.name)}")

        child, url = pod(0)
        command = kvbench_command("exporter", f"--pod={url}", "--every=0.1", "--exit-with-parent")
        exporter = stack.enter_context(Child("exporter", command, tmp_path / "x.log"))
        exporter = exporter.wait_ready(60)
        shown(metrics.UP, lambda value: value == 1)
        ask(url)
        shown(metrics.QUERIED_TOKENS, lambda value: value == 100)
        age = shown(metrics.AGE, lambda value: value > 1)
        child.ask_to_stop(signal.SIGKILL)
        child.wait(10)
        shown(metrics.UP, lambda value: value == 0)
        child, _ = pod(int(url.rpartition(":")[2]))
        shown(metrics.COLD_START, lambda value: value == 1)

        assert shown(metrics.AGE, lambda _: True) < age + 10
        ask(url)
        assert shown(metrics.QUERIED_TOKENS, lambda value: value > 100) == 200
