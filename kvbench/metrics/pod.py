"""What the simulated pod tells about itself, beside the families that it impersonates."""

from __future__ import annotations

from kvbench.metrics.metric import Metric

STEPS = Metric(
    "kvbench_pod_steps_total",
    "counter",
    "Scheduler steps of the simulated engine.",
)
LATE_SECONDS = Metric(
    "kvbench_pod_late_seconds_total",
    "counter",
    "Seconds by which steps were handed out later than the simulated hardware would have.",
)
WORST_LATE_SECONDS = Metric(
    "kvbench_pod_worst_late_seconds",
    "gauge",
    "Lateness of the latest step.",
)
TIMELINE_JUMPS = Metric(
    "kvbench_pod_timeline_jumps_total",
    "counter",
    "Times that the simulation fell so far behind the clock that it gave up catching up.",
)
EVICTIONS = Metric(
    "kvbench_pod_evictions_total",
    "counter",
    "Cached blocks given up for others.",
)
CACHED_BLOCKS = Metric(
    "kvbench_pod_cached_blocks",
    "gauge",
    "Blocks that hold a prefix, referenced or not.",
)

METRICS = (STEPS, LATE_SECONDS, WORST_LATE_SECONDS, TIMELINE_JUMPS, EVICTIONS, CACHED_BLOCKS)
