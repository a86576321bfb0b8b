"""Exporter and doctor beside real pods: what they say is what the engines did."""

from __future__ import annotations

import json
import subprocess
import urllib.request

import pytest

from kvbench.metrics import exporter as metrics
from kvbench.stack.process import Child, kvbench_command

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
BLOCK = 32  # as the real pods are started


def flag(url: str) -> str:
    """Return a real pod as `--pod` takes it: events on its port + 1000, replay on + 2000."""
    port = int(url.rpartition(":")[2])
    events, replay = (f"tcp://127.0.0.1:{port + n}" for n in (1000, 2000))
    return f"{url},events={events},replay={replay}"


def complete(url: str, prompt: list[int]) -> int:
    """Have a pod answer; return how many tokens it says were cached."""
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        usage = json.load(answer)["usage"]
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def shown(url: str, metric, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(metric.name + "{") and all(pair in line for pair in wanted)
    )


def reset(url: str) -> None:
    """Have a pod forget its prefixes."""
    urllib.request.urlopen(f"{url}/reset_prefix_cache", data=b"", timeout=30).close()


def test_the_exporter_says_of_real_pods_what_they_did(real_pods, tmp_path):
    """Capacity, residents, causes and hits, by hand: blocks of 32 in 600."""
    for url in real_pods:
        reset(url)
    first, second = real_pods
    shared, own = list(range(300, 556)), list(range(900, 1156))
    command = kvbench_command("exporter", "--every=0.2", "--exit-with-parent")
    command += [f"--pod={flag(url)}" for url in real_pods]
    with Child("exporter", command, tmp_path / "exporter.log") as child:
        url = child.wait_ready(60)
        name = first.removeprefix("http://")

        def until(metric, value: float, **labels: str) -> None:
            for _ in range(300):
                if shown(url, metric, **labels) == value:
                    return
                child.wait(0.05)
            pytest.fail(f"{metric.name} {labels}: {shown(url, metric, **labels)}, not {value}")

        until(metrics.UP, 2)
        until(metrics.EVENTS_TRUST, 2, level="exact")
        cached = complete(first, shared) + complete(second, shared) + complete(first, own)
        cached += complete(first, [*shared, *own])
        until(metrics.REQUESTS, 4)
        until(metrics.QUERIED_TOKENS, 3 * 256 + 512)

        assert shown(url, metrics.CAPACITY_TOKENS, pod=name) == 599 * BLOCK
        assert shown(url, metrics.RESIDENT_TOKENS, pod=name) == (8 + 8 + 8) * BLOCK
        assert shown(url, metrics.EVICTABLE_TOKENS, pod=name) == 24 * BLOCK
        assert shown(url, metrics.STORED_TOKENS, pod=name, cause="cold") == 24 * BLOCK
        other = second.removeprefix("http://")
        assert shown(url, metrics.STORED_TOKENS, pod=other, cause="elsewhere") == 8 * BLOCK
        assert shown(url, metrics.HIT_TOKENS) == cached == 8 * BLOCK
        assert shown(url, metrics.ATTAINABLE_TOKENS) == 16 * BLOCK
        assert shown(url, metrics.HELD_TOKENS, pods="2") == 8 * BLOCK
        resets = shown(url, metrics.COLD_START, pod=name, reason="reset")  # told a step later
        reset(first)
        complete(first, shared)
        until(metrics.STORED_TOKENS, 8 * BLOCK, pod=other, cause="elsewhere")
        until(metrics.COLD_START, resets + 1, pod=name, reason="reset")
        assert shown(url, metrics.WINDOW_TOKENS, pod=name) == 8192


def test_the_doctor_finds_nothing_wrong_with_pods_that_are_well(real_pods):
    """They were started with all that it asks for; what is left are notes, and the override."""
    done = subprocess.run(
        kvbench_command("doctor", *map(flag, real_pods), "--json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    document = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert [pod["block_tokens"] for pod in document["pods"]] == [BLOCK, BLOCK]
    assert [pod["events"] for pod in document["pods"]] == ["heard", "heard"]
    assert [pod["trained_window"] for pod in document["pods"]] == [32768, 32768]
    loud = {f["check"] for f in document["findings"] if f["severity"] != "note"}
    assert loud == {"capacity", "concurrency"}  # 600 blocks by an override, two long requests
