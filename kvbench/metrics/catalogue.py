"""The metrics of kvbench's own: `kvbench_*`, each named once, in its component's module.

Dashboards, rules and `docs/metrics.md` are drawn from this table. Labels have bounded values: pods
and policies that the operator named, and words of closed sets; never a client's words.
"""

from __future__ import annotations

from kvbench.metrics import exporter, load, pod, router

CATALOGUE = (*pod.METRICS, *router.METRICS, *load.METRICS, *exporter.METRICS)
"""All of them."""
