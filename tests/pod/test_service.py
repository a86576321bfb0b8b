"""A pod as a process: it says when it is ready, and ends in order."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest
from fakes_pod import NOW, make_config, read_stream
from wire import connected, scene

from kvbench.clock import WallClock
from kvbench.engine.values import EngineConfig
from kvbench.errors import InputError, TargetError
from kvbench.openai.stream import StreamFold
from kvbench.pod.faults import Faults, parse_fault
from kvbench.pod.publisher import EventsConfig
from kvbench.pod.service import PodService, fitted

COMMAND = [sys.executable, "-c", "import typer; from kvbench.cli.pod import pod; typer.run(pod)"]


def service(*faults: str, **config: float) -> PodService:
    """Return a pod that does not listen yet."""
    return PodService(
        make_config(**config),
        WallClock(),
        lambda: NOW,
        events=EventsConfig(),
        form="map",
        faults=Faults(map(parse_fault, faults)),
    )


def test_a_context_for_which_the_cache_has_no_room_is_shortened(caplog: pytest.LogCaptureFixture):
    """One block is kept back; the pod says so, and a context that fits stays."""
    config = EngineConfig(num_gpu_blocks=11, block_size=16, max_model_len=1000)
    assert fitted(config).max_model_len == 160
    assert "lowered from 1000 to 160" in caplog.text
    assert fitted(replace(config, max_model_len=160)).max_model_len == 160
    with pytest.raises(InputError, match="--num-gpu-blocks: expected at least 2, got 1"):
        fitted(replace(config, num_gpu_blocks=1))


@scene
async def test_a_stream_under_way_finishes_when_the_pod_is_stopped():
    """Within its grace; new clients are turned away."""
    pod = service(step_s=0.01)
    url = await pod.start("127.0.0.1", 0)
    port = int(url.rpartition(":")[2])
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10, "stream": True}
    fold = StreamFold()
    async with connected(port) as client:
        client.post("/v1/chat/completions", json.dumps(body | {"ignore_eos": True}).encode())
        await client.head()
        stopping = asyncio.ensure_future(pod.stop(5))
        await read_stream(client, fold)
        await stopping
    assert fold.done
    assert len(fold.chunk_stamps) == 10
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


@scene
async def test_a_stream_that_takes_longer_than_the_grace_is_cut():
    """The pod ends in any case."""
    pod = service(step_s=0.2)
    url = await pod.start("127.0.0.1", 0)
    body = {"prompt": "x", "max_tokens": 900, "stream": True, "ignore_eos": True}
    fold = StreamFold()
    async with connected(int(url.rpartition(":")[2])) as client:
        client.post("/v1/completions", json.dumps(body).encode())
        await client.head()
        await pod.stop(0.01)
        await read_stream(client, fold)
    assert not fold.done


@scene
async def test_a_start_that_is_to_fail_fails():
    """As the target's error, after the delay that was ordered."""
    now = WallClock().now
    began = now()
    with pytest.raises(TargetError, match="the pod does not start"):
        await service("start-delay:seconds=0.05", "start-fail").start("127.0.0.1", 0)
    assert now() - began >= 0.04


@scene
async def test_a_port_that_is_taken_leaves_nothing_running():
    """The pod's parts end before the error is raised."""
    pod, other = service(), service()
    url = await pod.start("127.0.0.1", 0)
    with pytest.raises(TargetError, match="cannot listen"):
        await other.start("127.0.0.1", int(url.rpartition(":")[2]))
    await pod.stop(0)


@pytest.mark.parametrize("how", ["its parent's end", "SIGTERM"])
def test_the_process_says_when_it_is_ready_and_ends_with_code_0(how: str):
    """One line on standard output, and nothing else there."""
    flags = ["--served-model-name", "m", "--time-scale", "0", "--num-gpu-blocks", "100"]
    child = subprocess.Popen(
        [*COMMAND, *flags, "--exit-with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        word, url = child.stdout.readline().split()
        assert word == "ready"
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            model = json.load(answer)["data"][0]
        assert (model["id"], model["max_model_len"]) == ("m", 99 * 16)
        if how == "its parent's end":
            assert child.stdin is not None
            child.stdin.close()
        else:
            child.send_signal(signal.Signals[how])
        assert child.wait(20) == 0
        assert child.stdout.read() == ""
