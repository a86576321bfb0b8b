"""What is wrong with pods, from what they say of themselves. Pure; `kvbench.stack.doctor` asks.

Severities: an *error* makes caching or its measurement fail; a *warning* costs hits, memory or
sight; a *note* is worth knowing. A finding names the flag that mends it where there is one.

What the folklore gets wrong is put right here: a low `--gpu-memory-utilization` is no safety but
cache given away; a full GPU is no full cache; a window that fits into memory may still be longer
than what the model was trained for; and blocks may be hit only in multiples of an alignment.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvbench.metrics import engines
from kvbench.metrics.exposition import whole
from kvbench.stack.examined import SEVERITIES, Examined, Finding, SeenRouter, Severity, Wish
from kvbench.units import format_bytes, format_number, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvbench.metrics.exposition import Reading

DEFAULT_UTILIZATION = 0.92
"""vLLM's own since 0.12; it was 0.9 before."""

_LOW_UTILIZATION, _HIGH_UTILIZATION = 0.85, 0.95
_LARGE_BLOCK = 64  # tokens: beyond, the half block that every prompt loses begins to matter
_FEW_REQUESTS = 4.0  # of full length at once
_FAMILIES = {
    engines.TTFT: "time_to_first_token",
    engines.ITL: "inter_token_latency",
    engines.E2E: "request_latency",
}
"""vLLM's words for the buckets of these, in --custom-histogram-buckets."""

_OPTIONAL = frozenset({
    engines.BLOCK_LIFETIME, engines.BLOCK_REUSE_GAP, engines.CACHE_CONFIG, engines.QUEUE_TIME,
})  # fmt: skip


def diagnose(
    pods: Sequence[Examined], wish: Wish, routers: Sequence[SeenRouter] = ()
) -> list[Finding]:
    """Return what is wrong, errors first, in the order of the pods."""
    found = [finding for router in routers for finding in _of_router(router)]
    for pod in pods:
        if pod.trouble is not None:
            found.append(Finding("reachable", "error", pod.name, pod.trouble))
            continue
        if pod.draining:
            found.append(
                Finding(
                    "healthy", "note", pod.name, "the router is draining it: no new requests",
                    f"POST /pods/{pod.name}/resume on the router's admin port, if it is to go on",
                )
            )  # fmt: skip
        if pod.unhealthy is not None:
            found.append(
                Finding("healthy", "error", pod.name, f"the router keeps off it: {pod.unhealthy}")
            )
        found += _of_answers(pod)
        if pod.reading is None:
            found.append(
                Finding(
                    "metrics", "error", pod.name, "no engine's metrics can be read at /metrics",
                    "start vLLM without --disable-log-stats, SGLang with --enable-metrics",
                )
            )  # fmt: skip
            continue
        found += _of_metrics(pod, pod.reading, wish)
    found += _together([pod for pod in pods if pod.trouble is None])
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _of_router(router: SeenRouter) -> Iterator[Finding]:
    """Yield what is wrong with a router."""
    levels: tuple[tuple[str, Severity, str], ...] = (
        ("degraded", "warning", "events of these pods were lost"),
        ("cold", "note", "no events of these pods are heard"),
    )
    for level, severity, what in levels:
        pods = [pod for pod, known in router.trust.items() if known == level]
        if pods:
            yield Finding(
                "router-trust", severity, router.name,
                f"{what}: {', '.join(pods)}. Requests are scored there by estimate",
                "--pod URL,events=tcp://HOST:PORT,replay=tcp://HOST:PORT",
            )  # fmt: skip
    given_up = [model for model, known in router.tokens_known.items() if not known]
    if given_up:
        yield Finding(
            "router-tokens", "warning", router.name,
            f"prompts of {', '.join(given_up)} come out otherwise than the pods count them: exact "
            "scores are off for these models",
            "--tokenizer DIR, with the tokenizer and the chat template that the pods have",
        )  # fmt: skip


def _of_answers(pod: Examined) -> Iterator[Finding]:
    """Yield what is wrong with what a pod answers."""
    if pod.told is False:
        yield Finding(
            "cached-tokens", "warning", pod.name,
            "answers do not say how many prompt tokens were cached: hits of single requests are "
            "unknown to clients and routers",
            "--enable-prompt-tokens-details",
        )  # fmt: skip
    elif pod.told and not pod.cached:
        yield Finding(
            "hits", "error", pod.name,
            "nothing was cached of a prompt that had just been asked",
            "--enable-prefix-caching, if it is off; else look for what stands in between",
        )  # fmt: skip
    if pod.window and pod.trained and pod.window > pod.trained:
        yield Finding(
            "trained-window", "error", pod.name,
            f"requests of up to {pod.window:,} tokens are taken, and the model was trained for "
            f"{pod.trained:,}: beyond, answers loop or fall apart, however much memory there is",
            f"--max-model-len {pod.trained}",
        )  # fmt: skip
    if pod.events == "silent":
        yield Finding(
            "events", "error", pod.name,
            "no KV event came from the endpoint that was given, though blocks were stored", _EVENTS,
        )  # fmt: skip
    elif pod.events == "off":
        yield Finding(
            "events", "warning", pod.name,
            "no KV events are published: what the cache holds, evicts and has twice is unknown",
            _EVENTS,
        )  # fmt: skip
    elif pod.events == "unknown":
        yield Finding(
            "events", "note", pod.name,
            "KV events were not looked for: append ,events=tcp://HOST:PORT to the URL", _EVENTS,
        )  # fmt: skip


_EVENTS = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)


def _of_metrics(pod: Examined, reading: Reading, wish: Wish) -> Iterator[Finding]:
    """Yield what is wrong by a pod's own metrics."""
    if reading.setting("enable_prefix_caching") == "False":
        yield Finding(
            "prefix-caching", "error", pod.name,
            "prefix caching is off: every prompt is computed in full",
            "--enable-prefix-caching (vLLM's default; take out --no-enable-prefix-caching)",
        )  # fmt: skip
    yield from _blocks(pod, reading, wish)
    yield from _memory(pod, reading)
    yield from _concurrency(pod, reading)
    yield from _hashes(pod, reading)
    yield from _buckets(pod, wish)
    yield from _missing(pod, reading)


def _blocks(pod: Examined, reading: Reading, wish: Wish) -> Iterator[Finding]:
    """Yield what is wrong with the size of blocks."""
    size = reading.block_tokens
    if size is None:
        return
    if wish.block_size is not None and size != wish.block_size:
        yield Finding(
            "block-size", "error", pod.name,
            f"blocks are of {size} tokens, and {wish.block_size} are expected: hashes of prefixes "
            "agree nowhere",
            f"--block-size {wish.block_size}, or tell the router {size}",
        )  # fmt: skip
    if pod.event_block is not None and pod.event_block != size:
        yield Finding(
            "block-size", "warning", pod.name,
            f"events tell of blocks of {pod.event_block} tokens, metrics of {size}: a model with "
            "several kinds of attention; what counts is what events tell",
        )  # fmt: skip
    aligned = whole(reading.setting("cache_hit_alignment_tokens"))
    if aligned is not None and aligned > size:
        yield Finding(
            "block-size", "warning", pod.name,
            f"only multiples of {aligned:,} tokens are ever hit: shared prefixes that are shorter "
            "count for nothing, and no metric says why",
        )  # fmt: skip
    elif size > _LARGE_BLOCK:
        yield Finding(
            "block-size", "note", pod.name,
            f"with blocks of {size} tokens a prompt loses {size // 2} hits on average to rounding",
            "--block-size 16 on GPUs, 32 on CPUs",
        )  # fmt: skip


def _memory(pod: Examined, reading: Reading) -> Iterator[Finding]:
    """Yield what is wrong with how much memory the cache has."""
    if (blocks := reading.setting("num_gpu_blocks_override")) is not None:
        yield Finding(
            "capacity", "warning", pod.name,
            f"the cache has {blocks} blocks because it was told so, whatever memory there is",
            "take out --num-gpu-blocks-override, unless this is a test",
        )  # fmt: skip
    try:
        share = float(reading.setting("gpu_memory_utilization") or "nan")
    except ValueError:
        return
    more = ""
    if pod.kv_bytes_per_token:
        tokens = 2**30 // pod.kv_bytes_per_token
        size = format_bytes(pod.kv_bytes_per_token)
        more = f"; each GiB more holds {tokens:,} tokens ({size} each)"
    capacity = format_number(reading.capacity_tokens)
    if share < _LOW_UTILIZATION:
        yield Finding(
            "utilization", "warning", pod.name,
            f"the engine may take {share:g} of the GPU's memory, and what weights leave of it is "
            f"all the cache there is: {capacity} tokens{more}",
            f"--gpu-memory-utilization {DEFAULT_UTILIZATION}, unless something else needs the GPU",
        )  # fmt: skip
    elif share > _HIGH_UTILIZATION:
        yield Finding(
            "utilization", "note", pod.name,
            f"the engine may take {share:g} of the GPU's memory: little is left for peaks, and an "
            f"out-of-memory ends the pod with all that it has cached ({capacity} tokens)",
            f"--gpu-memory-utilization {DEFAULT_UTILIZATION}",
        )  # fmt: skip


def _concurrency(pod: Examined, reading: Reading) -> Iterator[Finding]:
    """Yield what is wrong between the window and the cache."""
    capacity, window = reading.capacity_tokens, pod.window
    if not capacity or not window:
        return
    fit = capacity / window
    lengths = reading.lengths.get(engines.PROMPT_LENGTHS.word)
    seen = ""
    if lengths is not None and lengths.count >= 100:
        bound = next(b for b, n in zip(lengths.bounds, lengths.counts, strict=True)
                     if n >= 0.99 * lengths.count)  # fmt: skip
        seen = f"; 99 % of {lengths.count:,.0f} prompts had at most {min(bound, window):,.0f}"
    if fit < _FEW_REQUESTS:
        severity: Severity = "error" if fit < 1 else "warning"
        yield Finding(
            "concurrency", severity, pod.name,
            f"{fit:.1f} requests of the longest kind ({window:,} tokens) fill the cache of "
            f"{capacity:,.0f} tokens: one of them evicts what others would hit{seen}",
            "--max-model-len as long as requests need, or more memory for the cache",
        )  # fmt: skip
    usage, preempted = reading.get(engines.USAGE), reading.get(engines.PREEMPTIONS)
    if preempted and usage is not None and usage > 0.9:
        yield Finding(
            "preemptions", "warning", pod.name,
            f"{usage:.0%} of the cache is in use and {preempted:,.0f} requests have lost their "
            "blocks so far: running requests alone need more than there is",
            "fewer at once (--max-num-seqs), or more memory for the cache",
        )  # fmt: skip


def _hashes(pod: Examined, reading: Reading) -> Iterator[Finding]:
    """Yield what is wrong with how blocks are named."""
    algorithm = reading.setting("prefix_caching_hash_algo")
    if algorithm == "builtin":
        yield Finding(
            "hashes", "warning", pod.name,
            "blocks are named by Python's hash(): two prompts may be taken for one",
            "--prefix-caching-hash-algo sha256",
        )  # fmt: skip
    elif algorithm == "sha256":
        yield Finding(
            "hashes", "note", pod.name,
            "names of blocks differ from process to process. kvbench does not mind; routers that "
            "compute vLLM's own names need the same ones everywhere",
            "--prefix-caching-hash-algo sha256_cbor, and the same PYTHONHASHSEED for all pods",
        )  # fmt: skip


def _buckets(pod: Examined, wish: Wish) -> Iterator[Finding]:
    """Yield objectives that fall between two buckets: nobody can count what meets them."""
    for quantity, seconds in wish.objectives:
        bounds = pod.bounds.get(quantity.word, ())
        if not bounds or seconds in bounds:
            continue
        below = [bound for bound in bounds if bound < seconds]
        near = next(
            (f"{format_seconds(a)} and {format_seconds(b)}" for a, b in pairwise(bounds)
             if a < seconds < b),
            f"{'over' if below else 'under'} all of them",
        )  # fmt: skip
        wanted = ",".join(f"{bound:g}" for bound in sorted({*bounds, seconds}))
        yield Finding(
            "objectives", "warning", pod.name,
            f"{quantity.word.upper()} of {format_seconds(seconds)} lies between buckets ({near}): "
            "what share of requests meets it cannot be known",
            f"--custom-histogram-buckets '{{\"{_FAMILIES[quantity]}\":[{wanted}]}}', or an "
            "objective on a bound",
        )  # fmt: skip


def _missing(pod: Examined, reading: Reading) -> Iterator[Finding]:
    """Yield metrics that dashboards need and the pod does not have."""
    if not reading.engine:
        return
    missing: list[str] = []
    old: list[str] = []
    for quantity in engines.QUANTITIES:
        names = [n for n in quantity.names if engines.engine_of(n) == reading.engine]
        if not names or quantity in _OPTIONAL:
            continue
        have = [name for name in names if name in reading.declared]
        if not have:
            missing.append(names[0])
        elif have[0] != names[0]:
            old.append(have[0])
    if missing:
        yield Finding(
            "metrics", "warning", pod.name, f"dashboards and rules miss {', '.join(missing)}",
            "a newer engine; for SGLang's lengths --collect-tokens-histogram",
        )  # fmt: skip
    if old:
        yield Finding(
            "metrics", "note", pod.name,
            f"an old release: {', '.join(old)} are read under these names as well",
        )  # fmt: skip
    if reading.get(engines.STARTED) is None:
        yield Finding(
            "metrics", "note", pod.name,
            "the process does not say when it began (several API servers?): restarts are seen only "
            "by counters that fall",
        )  # fmt: skip


def _together(pods: Sequence[Examined]) -> Iterator[Finding]:
    """Yield what pods do not agree on."""
    readings = [(pod, pod.reading) for pod in pods if pod.reading is not None]
    facts: list[tuple[str, Severity, str, dict[str, object]]] = [
        ("models", "error", "models", {p.name: p.model for p in pods if p.model}),
        ("windows", "warning", "windows", {p.name: p.window for p in pods if p.window}),
        ("versions", "note", "versions", {p.name: p.version for p in pods if p.version}),
        ("block-size", "error", "block sizes", {p.name: r.block_tokens for p, r in readings}),
        (
            "hashes", "warning", "names of blocks",
            {p.name: r.setting("prefix_caching_hash_algo") for p, r in readings},
        ),
        (
            "cache-type", "warning", "cache types",
            {p.name: r.setting("cache_dtype") for p, r in readings},
        ),
    ]  # fmt: skip
    for check, severity, word, by_pod in facts:
        if len(set(by_pod.values())) > 1:
            each = ", ".join(f"{name}: {value}" for name, value in by_pod.items())
            yield Finding(check, severity, "", f"pods of one fleet have different {word} ({each})")


def trained_window(config: Mapping[str, object]) -> int | None:
    """Return the tokens that a model was trained for, by its `config.json`.

    `max_position_embeddings`, stretched where the configuration says that its rotary embedding is
    (but for kinds whose figure is the stretched one already), as vLLM derives it.
    """
    text = config.get("text_config")
    if isinstance(text, dict):
        config = text
    longest = config.get("max_position_embeddings")
    if not isinstance(longest, int):
        return None
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict):
        return longest
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind in {"su", "longrope", "llama3", "default", None} or not isinstance(factor, int | float):
        return longest
    original = rope.get("original_max_position_embeddings")
    return int((original if isinstance(original, int) else longest) * factor)
