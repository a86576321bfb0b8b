"""KV events, live: a real vLLM against our engine, and vLLM's own classes against our pod."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from real_vllm import free_port, wait_healthy
from recorded_events import RecordedEvents, play, renamed

from kvbench.kvcache.events import encode_batch
from kvbench.stack.process import Child, kvbench_command

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RECORDER = Path(__file__).parents[2] / "scripts" / "record_events.py"


def test_a_fresh_recording_of_events_is_what_our_engine_says(tmp_path):
    """Batch by batch and byte by byte, but for the engine's names of blocks and the time."""
    port, out = free_port(), tmp_path / "events.jsonl.gz"
    serve = [os.environ["REAL_VLLM"], str(port), "--num-gpu-blocks-override", "30"]
    with Child("pod", [*serve, "--max-model-len", "640"], tmp_path / "pod.log") as child:
        url = f"http://127.0.0.1:{port}"
        wait_healthy(child, url)
        command = [sys.executable, RECORDER, url, out, "--seed", "7"]
        command += ["--events", f"tcp://127.0.0.1:{port + 1000}"]
        command += ["--replay", f"tcp://127.0.0.1:{port + 2000}"]
        subprocess.run(command, check=True)
    recorded = RecordedEvents(out)
    steps = renamed(play(recorded.asked)[0], recorded.batches)
    assert steps == [batch.events for batch in recorded.batches]
    for frames, batch in zip(recorded.published, recorded.batches, strict=True):
        assert encode_batch(batch) == frames[2]
    assert recorded.replayed[0][:-1] == [[b"", *frames] for frames in recorded.published]


def ask(url: str, number: int) -> int:
    """Send a prompt of 100 tokens; return how many blocks of 32 are in it."""
    body = {"prompt": [number % 400, number // 400] + [7] * 98, "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=20).close()
    return 3


def test_vllms_own_classes_read_what_a_simulated_pod_publishes(tmp_path):
    """To the last byte: what its encoder makes of what its decoder read is what was sent."""
    port = free_port()
    events = {"enable_kv_cache_events": True, "topic": "kv@pod@tiny"}
    events["endpoint"] = f"tcp://*:{port + 1000}"
    events["replay_endpoint"] = f"tcp://127.0.0.1:{port + 2000}"
    pod = kvbench_command("pod", "--exit-with-parent", "--block-size", "32", "--time-scale", "0")
    pod += ["--num-gpu-blocks", "40", "--kv-events-config", json.dumps(events)]
    python = Path(os.environ["REAL_VLLM"]).parent / "venv" / "bin" / "python"
    with Child("pod", pod, tmp_path / "pod.log") as child:
        url = child.wait_ready(60)
        stored = sum(ask(url, number) for number in range(20))
        consumer = [python, Path(__file__).parent / "events_in_vllm.py", "5"]
        consumer[2:2] = [f"tcp://127.0.0.1:{port + 1000}", f"tcp://127.0.0.1:{port + 2000}"]
        with subprocess.Popen(consumer, stdout=subprocess.PIPE, text=True) as process:
            batches = json.loads(process.stdout.readline())
            number = 20
            while process.poll() is None:
                ask(url, number := number + 1)
        assert process.returncode == 0
    told = [event for _, batch, _ in batches for event in batch]
    assert len(batches) == 20
    assert sum(len(e["block_hashes"]) for e in told if e["type"] == "BlockStored") == stored
    assert sum(len(e["block_hashes"]) for e in told if e["type"] == "BlockRemoved") > 0
