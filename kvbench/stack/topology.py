"""Which parts a stack has, and with which flags: the one truth about it.

Pure data. `kvbench up` and `kvbench demo` start what is described here as local processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.stack.process import kvbench_command


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

    def command(self, host: str, port: int) -> list[str]:
        """Return the command line that starts it; port 0 takes a free one."""
        extra = ["--tokenizer", self.tokenizer] if self.tokenizer else []
        return kvbench_command(
            *("pod", "--host", host, "--port", str(port), "--exit-with-parent", "--dev-mode"),
            *("--served-model-name", self.model, "--profile", self.profile),
            *("--block-size", str(self.block_size)),
            *("--num-gpu-blocks", str(self.num_gpu_blocks)),
            *("--max-model-len", str(self.max_model_len)),
            *("--time-scale", str(self.time_scale)),
            *extra,
        )


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """The router.

    Attributes:
        policy: Which pod gets a request.
        seed: Of its random choices.
    """

    policy: str = "prefix_cost"
    seed: int = 0

    def command(self, host: str, port: int, pods: list[str]) -> list[str]:
        """Return the command line that starts it in front of `pods` (URLs)."""
        return kvbench_command(
            *("router", "--host", host, "--port", str(port), "--exit-with-parent"),
            *("--policy", self.policy, "--seed", str(self.seed)),
            *(word for url in pods for word in ("--pod", url)),
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """A stack: pods behind a router."""

    pods: tuple[PodSpec, ...] = (PodSpec(),) * 3
    router: RouterSpec = RouterSpec()
    host: str = "127.0.0.1"
