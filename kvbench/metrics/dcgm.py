"""What NVIDIA's dcgm-exporter tells of GPUs, as far as dashboards read it: its names, not ours.

It runs where the GPUs are, which our exporter need not. Memory is in MiB, so only quotients of it
are drawn. Its label for the machine is `Hostname`, and `hostname` in later releases.
"""

from __future__ import annotations

from kvbench.metrics.metric import Metric

LABELS = ("gpu", "Hostname", "hostname")

USED_MIB = Metric("DCGM_FI_DEV_FB_USED", "gauge", "Memory taken on a GPU, MiB.", LABELS)
FREE_MIB = Metric("DCGM_FI_DEV_FB_FREE", "gauge", "Memory free on a GPU, MiB.", LABELS)
BUSY_PERCENT = Metric(
    "DCGM_FI_DEV_GPU_UTIL", "gauge", "Percent of time in which a GPU did anything.", LABELS
)
MEMORY_ACTIVE = Metric(
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "gauge",
    "Share of cycles in which a GPU's memory moved data: what decoding is bound by.",
    LABELS,
)

METRICS = (USED_MIB, FREE_MIB, BUSY_PERCENT, MEMORY_ACTIVE)
"""All of them."""
