"""`docs/metrics.md`, drawn from the catalogue: what kvbench tells, and what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.metrics import dcgm, engines, exporter, load, pod, router

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvbench.metrics.metric import Metric

_ROUTER = """\
`kvbench router`. It hears KV events by itself; what it tells of them has the exporter's names:
`kvbench_router_events_…` here is `kvbench_events_…` there. Restarts are the router's alone; the
exporter has `kvbench_cache_cold_starts_total`."""
_PARTS = (
    ("Exporter", exporter, "`kvbench exporter`, beside any pods."),
    ("Router", router, _ROUTER),
    ("Load generator", load, "`kvbench run`, at the master."),
    ("Simulated pod", pod, "`kvbench pod`, beside the families of vLLM that it serves."),
)


def page() -> str:
    """Return the page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Drawn from `kvbench/metrics`; `kvbench generate` writes it anew. All of kvbench's own"
    yield "metrics begin with `kvbench_`, have no colon, and come in base units."
    for title, module, where in _PARTS:
        yield ""
        yield f"## {title}"
        yield ""
        yield where
        yield ""
        yield from _table(module.METRICS)
        if module is exporter:
            yield ""
            values = "; ".join(f"`{k}`: {', '.join(v)}" for k, v in exporter.LABELS.items())
            yield f"Values of labels: {values}."
    yield ""
    yield "## What is read off engines"
    yield ""
    yield "Old names, new names, and with `_` for `:`, as some scrapers ask for."
    yield ""
    yield "| what | kind | vLLM | SGLang |"
    yield "|---|---|---|---|"
    for quantity in engines.QUANTITIES:
        vllm, sglang = (_code(quantity.of(engine)) for engine in engines.ENGINES)
        yield f"| {quantity.help} | {quantity.kind} | {vllm} | {sglang} |"

    yield ""
    yield "And off NVIDIA's dcgm-exporter, where it runs:"
    yield ""
    yield from _table(dcgm.METRICS)


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | kind | labels | what it is |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(metric.labels)
        buckets = f" Buckets: {', '.join(f'{b:g}' for b in metric.buckets)}."
        text = metric.help + (buckets if metric.buckets else "")
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {text} |"


def _code(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)
