"""Which parts a stack has, on which ports and with which flags: the one truth about it.

Pure data. `kvbench up` and `kvbench demo` start what is described here as local processes, and
docker-compose.yml says the same in its own words: a test compares them word for word.

A part's `arguments` are what stands behind the command's name, the same everywhere; its `command`
is what starts it as a child of this process.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace

from kvbench.errors import InputError
from kvbench.policies.names import DEFAULT, check_policy
from kvbench.stack.foreign import foreign_command
from kvbench.stack.process import kvbench_command

POD_PORT = 8000
"""Of every pod in a container of its own; also the router's, which stands in for the pods."""
EVENTS_PORT, REPLAY_PORT = 5557, 5558
ROUTER_PORT = 8000
EXPORTER_PORT = 9410
LOCUST_PORT = 8089
PROMETHEUS_PORT = 9090
ALERTMANAGER_PORT = 9093
GRAFANA_PORT = 3000
DCGM_PORT = 9400

CHILD = "--exit-with-parent"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a pod listens.

    Attributes:
        host: Address of its API.
        port: Port of its API; 0 takes a free one.
        events: ZeroMQ endpoint of its KV events: with a `*`, or of `ipc`, it is bound, as vLLM
            has it.
        replay: ZeroMQ endpoint that replays them.
    """

    host: str
    port: int
    events: str
    replay: str

    def seen_as(self, url: str) -> str:
        """Return `--pod` of router and exporter, for those who reach it at `url`."""
        return f"{url},events={self.events},replay={self.replay}"

    @property
    def events_config(self) -> str:
        """The value of `--kv-events-config`."""
        config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
        }
        return json.dumps(config, separators=(",", ":"))


IN_CONTAINER = Listening(
    "0.0.0.0",
    POD_PORT,
    f"tcp://*:{EVENTS_PORT}",
    f"tcp://*:{REPLAY_PORT}",
)


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A simulated pod.

    Attributes:
        model: Name under which it serves its model.
        profile: Which hardware's timing it has.
        block_size: Tokens per KV block.
        num_gpu_blocks: Blocks in its cache.
        max_model_len: Longest prompt and answer together, in tokens.
        time_scale: Factor on all its times: 0.5 answers twice as fast as the profile.
        tokenizer: Directory of a tokenizer, or None for kvbench's own.
    """

    model: str = "kvbench-sim"
    profile: str = "llama-3.1-8b-l4"
    block_size: int = 16
    num_gpu_blocks: int = 8192
    max_model_len: int = 131072
    time_scale: float = 1.0
    tokenizer: str | None = None

    def arguments(self, at: Listening) -> list[str]:
        """Return what stands behind `kvbench`."""
        return [
            *("pod", f"--host={at.host}", f"--port={at.port}", "--dev-mode"),
            f"--served-model-name={self.model}",
            f"--profile={self.profile}",
            f"--block-size={self.block_size}",
            f"--num-gpu-blocks={self.num_gpu_blocks}",
            f"--max-model-len={self.max_model_len}",
            f"--time-scale={self.time_scale}",
            f"--kv-events-config={at.events_config}",
            *([f"--tokenizer={self.tokenizer}"] if self.tokenizer else []),
        ]

    def command(self, at: Listening) -> list[str]:
        """Return the command line that starts it as a child."""
        return kvbench_command(*self.arguments(at), CHILD)

    @property
    def env(self) -> dict[str, str]:
        """What is added to its environment."""
        return {}


@dataclass(frozen=True, slots=True)
class VllmSpec:
    """A real vLLM, through its `vllm` command, with the flags that hits, events and usage need.

    Attributes:
        model: What it serves: a name on the hub, or a directory.
        name: What it calls the model; None: as `model` says.
        revision: Of a model on the hub.
        block_size: Tokens per KV block: 16 on GPUs; on CPUs a multiple of 32.
        max_model_len: Longest prompt and answer together, in tokens; None: as the model has it.
        gpu_memory_utilization: Share of the GPU's memory that it takes; None on a CPU.
        starts: Command that starts it; {model} and {port} are filled in, the flags follow.
        gpu: Which GPU it has, None on a CPU.
        extra: Further flags of vLLM.
    """

    model: str
    name: str | None = None
    revision: str | None = None
    block_size: int = 16
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    starts: str = "vllm serve {model}"
    gpu: int | None = None
    extra: tuple[str, ...] = ()

    def arguments(self, at: Listening) -> list[str]:
        """Return the flags."""
        optional = {
            "--served-model-name": self.name,
            "--revision": self.revision,
            "--max-model-len": self.max_model_len,
            "--gpu-memory-utilization": self.gpu_memory_utilization,
        }
        return [
            *(f"--host={at.host}", f"--port={at.port}"),
            f"--block-size={self.block_size}",
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            f"--kv-events-config={at.events_config}",
            *(f"{flag}={value}" for flag, value in optional.items() if value is not None),
            *self.extra,
        ]

    def starting(self, at: Listening) -> list[str]:
        """Return vLLM's own command line."""
        filled = {"{model}": self.model, "{port}": str(at.port)}
        words = [filled.get(word, word) for word in shlex.split(self.starts)]
        return [*words, *self.arguments(at)]

    def command(self, at: Listening) -> list[str]:
        """Return the command line that starts it as a child."""
        return foreign_command(f"http://{at.host}:{at.port}", "/health", self.starting(at))

    @property
    def env(self) -> dict[str, str]:
        """What is added to its environment."""
        return {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": str(self.gpu)}


def on_gpus(spec: VllmSpec, pods: int, gpus: int) -> tuple[VllmSpec, ...]:
    """Return pods with a GPU each, or all on the CPU where there is no GPU.

    Raises:
        InputError: There are GPUs, but too few.
    """
    if not gpus:
        return (spec,) * pods
    if pods > gpus:
        raise InputError(
            f"--pods: {pods} vLLM pods want a GPU each, and this machine has {gpus}",
            hint=f"--pods {gpus}; a model on several GPUs is not spread by kvbench",
        )
    return tuple(replace(spec, gpu=gpu) for gpu in range(pods))


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """The router.

    Attributes:
        policy: Which pod gets a request.
        seed: Of its random choices.
    """

    policy: str = DEFAULT
    seed: int = 0

    def __post_init__(self) -> None:
        check_policy(self.policy)

    def arguments(self, host: str, port: int) -> list[str]:
        """Return what stands behind `kvbench`, without the pods."""
        return [
            *("router", f"--host={host}", f"--port={port}"),
            *(f"--policy={self.policy}", f"--seed={self.seed}"),
        ]

    def command(self, host: str, port: int, pods: list[str]) -> list[str]:
        """Return the command line that starts it in front of `pods`, as `--pod` takes them."""
        return kvbench_command(
            *self.arguments(host, port), CHILD, *(f"--pod={pod}" for pod in pods)
        )


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """The exporter, beside pods and router."""

    def arguments(self, host: str, port: int, router: str) -> list[str]:
        """Return what stands behind `kvbench`, without the pods."""
        return ["exporter", f"--host={host}", f"--port={port}", f"--router={router}"]

    def command(self, host: str, port: int, router: str, pods: list[str]) -> list[str]:
        """Return the command line that starts it beside `pods`, as `--pod` takes them."""
        return kvbench_command(
            *self.arguments(host, port, router), CHILD, *(f"--pod={pod}" for pod in pods)
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """A stack: pods behind a router.

    Attributes:
        pods: The pods.
        router: The router.
        host: Address that all of it listens on.
    """

    pods: tuple[PodSpec | VllmSpec, ...] = (PodSpec(),) * 3
    router: RouterSpec = RouterSpec()
    host: str = "127.0.0.1"
