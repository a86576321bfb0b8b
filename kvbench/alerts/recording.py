"""Recording rules: what the alerts compare, named `level:metric:operations`, engine-neutral.

Levels: `pod` is one pod of one model (job, model_name, instance), `model` all its pods (job,
model_name). Ratios are of sums, and absent while nothing happens. They read the pods' own metrics
and nothing of ours, so they work beside any vLLM or SGLang fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts.rule import Group, Recording
from kvbench.alerts.settings import Objective, Settings, duration
from kvbench.metrics import engines, vllm
from kvbench.metrics.promql import gauge, rate, ratio, resets, total, within

if TYPE_CHECKING:
    from kvbench.metrics.engines import Quantity

POD = "job, model_name, instance"
MODEL = "job, model_name"


class Names:
    """The records' names: the windows are part of them.

    Args:
        settings: Whose windows.
    """

    def __init__(self, settings: Settings) -> None:
        self._now = duration(settings.windows.now_s)
        self._past = duration(settings.windows.past_s)

    def pod(self, metric: str) -> str:
        """Return a pod's rate over the present."""
        return f"pod:{metric}:rate{self._now}"

    def model(self, metric: str) -> str:
        """Return a model's rate over the present."""
        return f"model:{metric}:rate{self._now}"

    def model_past(self, metric: str) -> str:
        """Return a model's rate over the past."""
        return f"model:{metric}:rate{self._past}"

    def hits(self, level: str) -> str:
        """Return the hit rate over the present."""
        return f"{level}:cache_hits:ratio_rate{self._now}"

    @property
    def hits_past(self) -> str:
        """The model's hit rate over the past."""
        return f"model:cache_hits:ratio_rate{self._past}"


RUNNING_OR_WAITING = "pod:requests:sum"
WAITING = "pod:requests_waiting:sum"
USAGE = "pod:kv_cache_usage:max"
YOUNG = "pod:young:bool"
YOUNG_SHARE = "model:young:ratio"


def late(metric: str, seconds: float) -> str:
    """Return the name of the share of observations beyond an objective, over a window."""
    return f"model:{metric}_late:ratio_rate{duration(seconds)}"


def recordings(settings: Settings) -> tuple[Group, ...]:
    """Return the groups of recording rules."""
    names = Names(settings)
    return (
        Group("kvbench-pod", (*_pod_rates(settings, names), *_pod_levels(settings, names))),
        Group("kvbench-model", _model(settings, names)),
        Group(
            "kvbench-objectives",
            (
                *_late("ttft", engines.TTFT, settings.ttft, settings),
                *_late("itl", engines.ITL, settings.itl, settings),
            ),
        ),
    )


def _pod_rates(settings: Settings, names: Names) -> tuple[Recording, ...]:
    """Return rates per pod."""
    now = duration(settings.windows.now_s)

    def record(metric: str, expression: str) -> Recording:
        return Recording(names.pod(metric), expression)

    return (
        record("prompt_tokens", total(rate(engines.QUERIES, now), POD)),
        record("prompt_tokens_cached", total(rate(engines.HITS, now), POD)),
        record(
            "prompt_tokens_uncached",
            f"{names.pod('prompt_tokens')} - {names.pod('prompt_tokens_cached')}",
        ),
        Recording(
            names.hits("pod"),
            ratio(names.pod("prompt_tokens_cached"), names.pod("prompt_tokens")),
        ),
        record("first_tokens", total(rate(engines.TTFT, now, part="count"), POD)),
        record("tokens", total(rate(engines.GENERATION_TOKENS, now), POD)),
        record(
            "progress",
            f"{total(rate(vllm.ITERATION_TOKENS, now, part='count'), POD)}\n"
            f"or {names.pod('tokens')}",
        ),
        record("preemptions", total(rate(engines.PREEMPTIONS, now), POD)),
    )


def _pod_levels(settings: Settings, names: Names) -> tuple[Recording, ...]:
    """Return levels per pod, and which pods are young."""
    young = duration(settings.windows.young_s)
    present = names.pod("prompt_tokens")
    return (
        Recording(
            RUNNING_OR_WAITING,
            f"{total(gauge(engines.RUNNING), POD)}\n+ {total(gauge(engines.WAITING), POD)}",
        ),
        Recording(WAITING, total(gauge(engines.WAITING), POD)),
        Recording(USAGE, f"max by ({POD}) ({gauge(engines.USAGE)})"),
        Recording(
            YOUNG,
            f"(sum by ({POD}) ({resets(engines.QUERIES, young)}) > 0) * 0 + 1\n"
            f"or ({present} unless {present} offset {young}) * 0 + 1\n"
            f"or {present} * 0",
        ),
    )


def _model(settings: Settings, names: Names) -> tuple[Recording, ...]:
    """Return what holds for all pods of a model together."""
    past = duration(settings.windows.past_s)
    summed = (
        "prompt_tokens",
        "prompt_tokens_cached",
        "prompt_tokens_uncached",
        "first_tokens",
        "tokens",
    )
    return (
        *(Recording(names.model(m), total(names.pod(m), MODEL)) for m in summed),
        Recording(
            names.hits("model"),
            ratio(names.model("prompt_tokens_cached"), names.model("prompt_tokens")),
        ),
        Recording(names.model_past("prompt_tokens"), total(rate(engines.QUERIES, past), MODEL)),
        Recording(
            names.hits_past,
            ratio(total(rate(engines.HITS, past), MODEL), names.model_past("prompt_tokens")),
        ),
        Recording(YOUNG_SHARE, f"avg by ({MODEL}) ({YOUNG})"),
    )


def _late(
    metric: str, quantity: Quantity, objective: Objective, settings: Settings
) -> tuple[Recording, ...]:
    """Return the share of observations beyond the objective, for each window."""
    return tuple(
        Recording(
            late(metric, seconds),
            f"1 - {within(objective.seconds, quantity, duration(seconds), by=MODEL)}",
        )
        for seconds in settings.windows.burns_s
    )
