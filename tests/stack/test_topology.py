"""What parts are started with."""

from __future__ import annotations

import json
import sys

import pytest

from kvbench.errors import InputError
from kvbench.pod.publisher import parse_events_config
from kvbench.stack.topology import (
    IN_CONTAINER,
    ExporterSpec,
    Listening,
    PodSpec,
    RouterSpec,
    VllmSpec,
    on_gpus,
)

HERE = Listening("127.0.0.1", 8001, "ipc:///tmp/1.events", "ipc:///tmp/1.replay")


def test_a_simulated_pod_publishes_its_events_where_it_is_told():
    """The setting is vLLM's own, and kvbench's pod reads it."""
    [setting] = [word for word in PodSpec().arguments(HERE) if "kv-events" in word]

    config = parse_events_config(setting.removeprefix("--kv-events-config="))

    assert config.publishes
    assert (config.endpoint, config.replay_endpoint) == (HERE.events, HERE.replay)


def test_a_child_ends_with_its_parent_and_a_container_does_not():
    """A container has no standard input to begin with."""
    assert "--exit-with-parent" in PodSpec().command(HERE)
    assert "--exit-with-parent" not in PodSpec().arguments(IN_CONTAINER)


def test_a_real_pod_has_the_flags_that_hits_events_and_usage_need():
    """What is not asked for is left to vLLM."""
    words = VllmSpec("org/model", block_size=32).starting(HERE)

    assert words[:3] == ["vllm", "serve", "org/model"]
    assert set(words[3:-1]) == {
        "--host=127.0.0.1",
        "--port=8001",
        "--block-size=32",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
    }
    assert json.loads(words[-1].removeprefix("--kv-events-config=")) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": HERE.events,
        "replay_endpoint": HERE.replay,
    }


def test_another_command_may_start_a_real_pod():
    """Its words are filled in, and flags of one's own come last, where vLLM lets them win."""
    spec = VllmSpec("m", starts="wrap 'a b' {port}", max_model_len=99, extra=("--x=1",))

    words = spec.starting(HERE)

    assert words[:3] == ["wrap", "a b", "8001"]
    assert words[-2:] == ["--max-model-len=99", "--x=1"]


def test_router_and_exporter_are_told_every_pod():
    """One flag for each."""
    pods = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    wanted = ["--pod=http://127.0.0.1:1", "--pod=http://127.0.0.1:2"]

    assert RouterSpec().command("127.0.0.1", 0, pods)[-2:] == wanted
    assert ExporterSpec().command("127.0.0.1", 0, "http://127.0.0.1:3", pods)[-2:] == wanted
    assert RouterSpec().command("127.0.0.1", 0, pods)[0] == sys.executable


def test_real_pods_get_a_gpu_each():
    """The first pod the first one."""
    assert [pod.env for pod in on_gpus(VllmSpec("m"), 2, 4)] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]


def test_without_a_gpu_real_pods_are_on_the_cpu():
    """As many as one likes."""
    assert [pod.env for pod in on_gpus(VllmSpec("m"), 3, 0)] == [{}, {}, {}]


def test_more_real_pods_than_gpus_are_refused():
    """The number that fits is said."""
    with pytest.raises(InputError, match="want a GPU each, and this machine has 2") as no:
        on_gpus(VllmSpec("m"), 3, 2)
    assert no.value.hint.startswith("--pods 2;")
