"""What a pod says about itself before it is calibrated, and whether it may be.

Read: `/v1/models`, the cache's settings and the queue gauges of `/metrics`, and, where the pod
runs in dev mode, its token budget from `/server_info`. What it does not say is assumed as stated
here; nothing is measured.
"""

from __future__ import annotations

import json
import urllib.error
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.engine.experiment import DECODED, Bounds
from kvbench.errors import InputError, TargetError
from kvbench.metrics import engines
from kvbench.metrics.exposition import NonsenseError, Reading, read, whole
from kvbench.stack.target import DEFAULT_BLOCK_SIZE, fetch, look_at

if TYPE_CHECKING:
    from collections.abc import Mapping

BUDGET = 8192
"""Tokens per step that are assumed where the pod does not say: vLLM's usual default on GPUs."""

_LONGEST = 16384  # tokens of a prompt: longer ones cost time and teach nothing new
_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """What a pod says about itself.

    Attributes:
        url: Where it is.
        model: What it is asked for.
        bounds: What it can take.
        budget: Tokens per step.
        budget_known: Whether it said so.
        kv_bytes_per_token: Of its cache; 0 where it does not say.
    """

    url: str
    model: str
    bounds: Bounds
    budget: int
    budget_known: bool
    kv_bytes_per_token: int


def look(url: str, model: str | None, most_sequences: int, budget: int | None) -> Facts:
    """Ask a pod what it is, before anything is measured.

    Raises:
        InputError: It is a router.
        TargetError: It does not answer, says too little, or is busy.
    """
    target = look_at(url, model)
    if target.routed:
        pods = ", ".join(target.pods.values())
        raise InputError(
            f"{target.url} is a router: a calibration is of one pod",
            hint=f"calibrate one of its pods: {pods}",
        )
    reading = _reading(target.url)
    _check_idle(target.url, reading)
    cache = reading.cache[0] if reading.cache else {}
    block_size = target.block_size or DEFAULT_BLOCK_SIZE
    window = target.max_model_len or _WINDOW
    tokens = (whole(cache.get("num_gpu_blocks")) or 0) * block_size
    kv_tokens = whole(cache.get("kv_cache_size_tokens")) or tokens or window
    said = _budget(target.url)
    return Facts(
        url=target.url,
        model=target.model,
        bounds=Bounds(min(window - DECODED, _LONGEST), block_size, most_sequences, kv_tokens),
        budget=budget or said or BUDGET,
        budget_known=(budget or said) is not None,
        kv_bytes_per_token=_bytes_per_token(cache, tokens),
    )


def _check_idle(url: str, reading: Reading) -> None:
    """Refuse a pod that is at work."""
    busy = sum(reading.get(what) or 0.0 for what in (engines.RUNNING, engines.WAITING))
    if busy:
        raise TargetError(
            f"{url} is busy with {busy:g} requests, which would be in every number",
            hint="calibrate a pod that nobody else uses",
        )


def _reading(url: str) -> Reading:
    """Return what a pod says at its `/metrics`; nothing where it exposes nothing."""
    try:
        return read(fetch(f"{url}/metrics"))
    except urllib.error.HTTPError as error:
        with error:
            return Reading()
    except NonsenseError:
        return Reading()


def _budget(url: str) -> int | None:
    """Return the pod's `max_num_batched_tokens`; None where it does not say."""
    try:
        info = json.loads(fetch(f"{url}/server_info?config_format=json"))
        budget = info["vllm_config"]["scheduler_config"]["max_num_batched_tokens"]
    except urllib.error.HTTPError as error:
        with error:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    return budget if isinstance(budget, int) and budget > 0 else None


def _bytes_per_token(cache: Mapping[str, str], tokens: int) -> int:
    """Return the bytes of KV cache per token, where the pod's bytes and blocks belong together."""
    if cache.get("num_gpu_blocks_override", "None") != "None" or not tokens:
        return 0
    return (whole(cache.get("kv_cache_memory_bytes")) or 0) // tokens
