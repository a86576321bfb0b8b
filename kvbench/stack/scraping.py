"""What a stack's Prometheus is told: the same locally and under Docker.

Pure data. alerts/compose/prometheus.yml says it for docker-compose.yml, with comments: a test holds
the two together. Pods are listed by the exporter, which hears from the router which come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

Config = dict[str, object]

SECONDS = "5s"
"""Between two scrapes and two looks at rules: a load run is short."""

_COLONS = {  # some scrapers are told vllm_… for vllm:…
    "source_labels": ["__name__"],
    "regex": "(vllm|sglang)_(.+)",
    "target_label": "__name__",
    "replacement": "${1}:${2}",
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where parts answer, host:port each, as Prometheus reaches them.

    Attributes:
        exporter: Also lists the pods.
        router: In front of them.
        load: Locust's master; None where none is part of the stack.
        prometheus: Itself.
        alertmanager: Gets the alerts.
    """

    exporter: str
    router: str
    load: str | None
    prometheus: str
    alertmanager: str


def prometheus_config(at: Addresses, rules: str) -> Config:
    """Return Prometheus' configuration.

    Args:
        at: What to scrape.
        rules: Glob of the rule files.
    """
    fixed = {
        "kvbench-router": at.router,
        "kvbench-exporter": at.exporter,
        "kvbench-load": at.load,
        "prometheus": at.prometheus,
        "alertmanager": at.alertmanager,
    }
    pods = {
        "job_name": "vllm",
        "http_sd_configs": [{"url": f"http://{at.exporter}/targets", "refresh_interval": "10s"}],
        "metric_relabel_configs": [_COLONS],
    }
    return {
        "global": {"scrape_interval": SECONDS, "evaluation_interval": SECONDS},
        "rule_files": [rules],
        "alerting": {"alertmanagers": [_fixed(at.alertmanager)]},
        "scrape_configs": [
            pods,
            *({"job_name": job, **_fixed(target)} for job, target in fixed.items() if target),
        ],
    }


def _fixed(target: str) -> Config:
    return {"static_configs": [{"targets": [target]}]}
