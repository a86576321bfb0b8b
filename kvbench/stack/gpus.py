"""How many GPUs this machine has, as NVIDIA's driver tells it."""

from __future__ import annotations

import pynvml


def count_gpus() -> int:
    """Return the number of GPUs; 0 where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
