"""What the load generator tells: at `/metrics` of its master, for all its workers together.

Counters begin anew with each run; `RUN` says which one it is. `turn` is "first" for the first turn
of a conversation, whose prompt can hit only what others share with it, and "later" for the rest.
"""

from __future__ import annotations

from kvbench.metrics.metric import Metric

_TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_ITL = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_LATE = (1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

TURNS = ("first", "later")
"""`turn` of TTFT."""

RUN = Metric(
    "kvbench_load_run_info",
    "info",
    "Which run is on, or was last, what it sends and where to; always 1.",
    ("run", "workload", "target"),
)
RUNNING = Metric("kvbench_load_running", "gauge", "Whether a run is on: 1 or 0.")
PLANNED_TURNS = Metric("kvbench_load_planned_turns", "gauge", "Turns of the plan.")
FILED_TURNS = Metric(
    "kvbench_load_turns_total",
    "counter",
    "Turns that have their row, by what became of them: 'ok', or the kind of error.",
    ("outcome",),
)
SENT_TURNS = Metric(
    "kvbench_load_sent_turns_total", "counter", "Turns sent and ended, by the pod.", ("pod",)
)
DUE_TURNS = Metric(
    "kvbench_load_due_turns_total", "counter", "Turns whose time has come: the intended rate."
)
BEGUN_TURNS = Metric(
    "kvbench_load_begun_turns_total",
    "counter",
    "Of these, turns that were sent: the achieved rate.",
)
IN_FLIGHT = Metric("kvbench_load_in_flight", "gauge", "Turns sent and not yet ended.")
PROMPT_TOKENS = Metric(
    "kvbench_load_prompt_tokens_total",
    "counter",
    "Prompt tokens of answers that said how many were cached.",
    ("pod",),
)
CACHED_TOKENS = Metric(
    "kvbench_load_cached_tokens_total",
    "counter",
    "Of the prompt tokens, those that the pod had cached.",
    ("pod",),
)
PLANNED_TOKENS = Metric(
    "kvbench_load_planned_prompt_tokens_total",
    "counter",
    "Prompt tokens of the same answers, as the plan counts them.",
    ("pod",),
)
CEILING_TOKENS = Metric(
    "kvbench_load_ceiling_tokens_total",
    "counter",
    "Of the planned prompt tokens, those that one endless cache would have had.",
    ("pod",),
)
COMPLETION_TOKENS = Metric(
    "kvbench_load_completion_tokens_total", "counter", "Tokens generated, by the pod.", ("pod",)
)
TTFT = Metric(
    "kvbench_load_time_to_first_token_seconds",
    "histogram",
    "From the actual send of a turn to its first token of any kind; answered turns only.",
    ("turn",),
    _TTFT,
)
ITL = Metric(
    "kvbench_load_inter_token_latency_seconds",
    "histogram",
    "Between the arrivals of two chunks of an answer.",
    (),
    _ITL,
)
LATENESS = Metric(
    "kvbench_load_lateness_seconds",
    "histogram",
    "How much later than planned a turn was sent: the generator's own fault.",
    (),
    _LATE,
)
JUDGED = Metric(
    "kvbench_load_judged_answers_total",
    "counter",
    "Answers of at least 32 tokens, and those that are known to be none, by the percent of the "
    "window that prompt and answer took.",
    ("context",),
)
DEGENERATE = Metric(
    "kvbench_load_degenerate_answers_total",
    "counter",
    "Of these, answers that loop, are salad, echo their prompt, are empty, or overflowed the "
    "window.",
    ("kind", "context"),
)
CPU = Metric(
    "kvbench_load_cpu_seconds_total", "counter", "CPU time of a worker's process.", ("worker",)
)
LOOP_DELAY = Metric(
    "kvbench_load_loop_delay_seconds",
    "gauge",
    "Latest that a timer of a worker fired, of about the last second.",
    ("worker",),
)

METRICS: tuple[Metric, ...] = (
    RUN,
    RUNNING,
    PLANNED_TURNS,
    FILED_TURNS,
    SENT_TURNS,
    DUE_TURNS,
    BEGUN_TURNS,
    IN_FLIGHT,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    PLANNED_TOKENS,
    CEILING_TOKENS,
    COMPLETION_TOKENS,
    TTFT,
    ITL,
    LATENESS,
    JUDGED,
    DEGENERATE,
    CPU,
    LOOP_DELAY,
)
