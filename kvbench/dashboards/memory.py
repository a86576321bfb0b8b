"""Memory and context: how much fits, how long requests are, and what the hardware holds."""

from __future__ import annotations

from kvbench.dashboards import queries
from kvbench.dashboards.panel import BLUE, GREEN, RED, YELLOW, Board, Panel, Query, Row, number
from kvbench.dashboards.queries import ENGINE, OURS, QUANTILES, RUN, WINDOW, by_pod
from kvbench.metrics import dcgm, engines, exporter
from kvbench.metrics.promql import gauge, quantile, rate, ratio, total, within


def board(near: float) -> Board:
    """Return the board; `near` is the share of the window that counts as near its end."""
    return Board(
        "Memory and context",
        "How much more fits, how near to the window are requests, and what does the hardware hold?",
        (
            Row("", _numbers(near)),
            Row("Room", (queries.usage(), queries.headroom(), _fitting())),
            Row("Want of room", (_waiting(), _preemptions(), _ended())),
            Row("Context", (_context(), _near(near), _lengths())),
            Row("Hardware", (_gpu(), _gpu_busy(), _process())),
        ),
    )


def _over(near: float, by: str = "") -> str:
    """Return the share of requests over a share of the window."""
    return f"1 - {within(near, exporter.CONTEXT_RATIO, WINDOW, OURS, by)}"


def _numbers(near: float) -> tuple[Panel, ...]:
    """Return what is left, and how near requests come."""
    sequences = gauge(exporter.HEADROOM_SEQUENCES, f'{OURS},length="p95"')
    capacity = total(gauge(exporter.CAPACITY_TOKENS, OURS))
    return (
        number(
            "Capacity",
            "Tokens that all pods together can hold.",
            "short",
            capacity,
            width=6,
            needs="exporter",
            idle="no exporter",
        ),
        number(
            "Headroom left",
            "Share of the capacity that further requests can take.",
            "percentunit",
            ratio(total(gauge(exporter.HEADROOM_TOKENS, OURS)), capacity),
            width=6,
            needs="exporter",
            idle="no exporter",
        ),
        number(
            "Further requests",
            "Requests of p95 length that still fit at once, on all pods together, if they share "
            "nothing.",
            "short",
            f"sum(floor({sequences}))",
            width=6,
            needs="exporter",
            idle="no requests yet",
        ),
        number(
            "Near the window",
            f"Share of requests that use more than {near:.0%} of the window.",
            "percentunit",
            _over(near),
            width=6,
            needs="exporter",
            steps=((None, GREEN), (0.01, YELLOW), (0.05, RED)),
        ),
    )


def _fitting() -> Panel:
    return Panel(
        "Further requests that fit",
        "On all pods together, if they share nothing: of the mean and p95 length of those that "
        "ended lately, or as long as the window.",
        "short",
        (
            Query(
                f"sum by (length) (floor({gauge(exporter.HEADROOM_SEQUENCES, OURS)}))",
                "{{length}}",
            ),
        ),
        needs="exporter",
        idle="no requests yet",
        least=None,
        log=True,
    )


def _waiting() -> Panel:
    return by_pod(
        "Queue",
        "Requests that wait for blocks or for a place in the batch.",
        "short",
        total(gauge(engines.WAITING, ENGINE), "instance"),
    )


def _preemptions() -> Panel:
    return by_pod(
        "Preemptions",
        "Times per second that a running request lost its blocks to another. Anything but 0 means "
        "that more is admitted than fits.",
        "short",
        total(rate(engines.PREEMPTIONS, WINDOW, ENGINE), "instance"),
    )


def _ended() -> Panel:
    return Panel(
        "Requests by how they ended",
        "Per second. `length`: cut at their limit or at the window. `abort`: the client left.",
        "reqps",
        (
            Query(
                total(rate(engines.REQUESTS, WINDOW, ENGINE), "finished_reason") + " > 0",
                "{{finished_reason}}",
            ),
        ),
        kind="stack",
    )


def _context() -> Panel:
    return Panel(
        "Effective context as a share of the window",
        "Prompt and answer of requests that ended, over the model's window. Quality suffers near "
        "the end of the window, and the next turn is refused behind it; memory has nothing to do "
        "with it.",
        "percentunit",
        tuple(
            Query(
                quantile(share, exporter.CONTEXT_RATIO, WINDOW, OURS), f"p{share * 100:g}", colour
            )
            for share, colour in QUANTILES
        ),
        needs="exporter",
        most=1,
    )


def _near(near: float) -> Panel:
    return Panel(
        "Requests near the window",
        f"Share of the requests of each pod that use more than {near:.0%} of the window.",
        "percentunit",
        (Query(_over(near, "pod"), "{{pod}}"),),
        needs="exporter",
    )


def _lengths() -> Panel:
    return Panel(
        "Prompt and answer lengths",
        "Tokens per request, p50 and p95.",
        "short",
        tuple(
            Query(
                quantile(share, quantity, WINDOW, ENGINE),
                f"{name} p{share * 100:g}",
                colour,
                dashed=share > 0.5,
            )
            for quantity, name, colour in (
                (engines.PROMPT_LENGTHS, "prompt", BLUE),
                (engines.ANSWER_LENGTHS, "answer", GREEN),
            )
            for share in (0.5, 0.95)
        ),
        least=None,
        log=True,
    )


_GPU = "gpu, Hostname, hostname"
_GPU_NAME = "GPU {{gpu}} {{Hostname}}{{hostname}}"


def _gpu() -> Panel:
    used, whole = gauge(exporter.GPU_USED_BYTES, RUN), gauge(exporter.GPU_TOTAL_BYTES, RUN)
    taken, free = total(gauge(dcgm.USED_MIB), _GPU), total(gauge(dcgm.FREE_MIB), _GPU)
    return Panel(
        "GPU memory taken",
        "By NVML of the exporter's machine, or by DCGM's exporter. An engine takes the cache's "
        "share at its start, so this is flat and high: it is never how full the cache is.",
        "percentunit",
        (
            Query(ratio(total(used, "gpu"), total(whole, "gpu")), "GPU {{gpu}}"),
            Query(ratio(taken, f"{taken} + {free}"), _GPU_NAME),
        ),
        needs="exporter",
        idle="no GPU here",
        quiet=True,
        most=1,
    )


def _gpu_busy() -> Panel:
    return Panel(
        "GPU busy",
        "Share of time in which the GPU did anything at all: a GPU that decodes one request is "
        "busy. How much its memory moves (DCGM) says more: decoding is bound by that.",
        "percentunit",
        (
            Query(total(gauge(exporter.GPU_BUSY, RUN), "gpu"), "GPU {{gpu}}"),
            Query(f"{total(gauge(dcgm.BUSY_PERCENT), _GPU)} / 100", _GPU_NAME),
            Query(total(gauge(dcgm.MEMORY_ACTIVE), _GPU), f"{_GPU_NAME}, memory", dashed=True),
        ),
        needs="exporter",
        idle="no GPU here",
        quiet=True,
        most=1,
    )


def _process() -> Panel:
    return Panel(
        "Process memory",
        "Resident memory of each pod's process. A steady rise is a leak, and no cache.",
        "bytes",
        (Query(total(gauge(exporter.PROCESS_BYTES, OURS), "pod"), "{{pod}}"),),
        needs="exporter",
        idle="not told",
    )
