"""Memory and use of the GPUs of this machine, by NVML; nothing where there is no driver.

NVML is asked anew each time, for a driver may come and go. What a GPU does not tell (some have no
utilisation) is absent. Refuses to say anything about the KV cache: an engine takes its memory at
the start, and from then on GPU memory looks full whatever the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment.

    Attributes:
        index: Its number.
        used_bytes: Memory taken, by whomever.
        total_bytes: Memory there is.
        busy: Share of the last moment in which it did anything; None if it does not tell.
    """

    index: int
    used_bytes: int
    total_bytes: int
    busy: float | None


def read_gpus(nvml: ModuleType = pynvml) -> list[Gpu]:
    """Return the GPUs that there are; none without a driver."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [gpu for n in range(nvml.nvmlDeviceGetCount()) if (gpu := _read(nvml, n))]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _read(nvml: ModuleType, index: int) -> Gpu | None:
    """Return one GPU, None if it is lost."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return None
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        busy = None
    return Gpu(index, memory.used, memory.total, busy)
