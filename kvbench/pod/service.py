"""A pod as a process: the parts put together, started, and ended in order."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING

from kvbench.errors import InputError, TargetError
from kvbench.http.server import serve
from kvbench.pod.publisher import Publisher
from kvbench.pod.server import Pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.clock import Clock
    from kvbench.engine.values import EngineConfig
    from kvbench.http.server import Server
    from kvbench.kvcache.events import Form
    from kvbench.pod.faults import Faults
    from kvbench.pod.publisher import EventsConfig
    from kvbench.pod.server import PodConfig

logger = logging.getLogger(__name__)


def fitted(config: EngineConfig) -> EngineConfig:
    """Return the settings with a `max_model_len` for which the cache has room.

    vLLM refuses to start where one request of full length would not fit. A simulated pod lowers
    the length instead, as vLLM does for `--max-model-len auto`, and says so.

    Raises:
        InputError: Not even one block is to be had.
    """
    room = (config.num_gpu_blocks - 1) * config.block_size
    if room < 2:
        raise InputError(
            f"--num-gpu-blocks: expected at least 2, got {config.num_gpu_blocks}",
            hint="one block is always kept back, as in vLLM",
        )
    if config.max_model_len <= room:
        return config
    logger.warning(
        "max_model_len lowered from %d to %d: the cache has no room for more",
        config.max_model_len,
        room,
    )
    return dataclasses.replace(config, max_model_len=room)


class PodService:
    """A pod that listens.

    Args:
        config: What it is.
        clock: Against which its engine runs.
        utc: Calendar seconds.
        events: Where KV events go.
        form: Their encoding.
        faults: What goes wrong.
    """

    def __init__(
        self,
        config: PodConfig,
        clock: Clock,
        utc: Callable[[], float],
        *,
        events: EventsConfig,
        form: Form,
        faults: Faults,
    ) -> None:
        self._config = config
        self._clock = clock
        self._utc = utc
        self._events = events
        self._form: Form = form
        self._faults = faults
        self._server: Server | None = None
        self._pod: Pod | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; return the URL.

        Raises:
            TargetError: The address or an endpoint cannot be had, or failing was ordered.
        """
        delay, fails = self._faults.start()
        await asyncio.sleep(delay)
        if fails:
            raise TargetError("the pod does not start", hint="--fault start-fail says so")
        publisher = None
        if self._events.publishes:
            publisher = Publisher(self._events, self._form, self._utc)
        self._pod = Pod(
            self._config, self._clock, self._utc, publisher=publisher, faults=self._faults
        )
        try:
            self._server = await serve(self._pod.handle, host, port, name="uvicorn")
        except TargetError:
            await self._pod.close()
            raise
        return self._server.url

    async def stop(self, grace_s: float) -> None:
        """End: take nothing new, let streams finish for `grace_s` seconds, then cut them."""
        if self._server is not None:
            await self._server.close(grace_s)
        if self._pod is not None:
            await self._pod.close()
