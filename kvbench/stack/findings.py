"""Findings for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbench.units import format_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvbench.stack.examined import Examined, Finding


def as_text(pods: Sequence[Examined], found: Sequence[Finding]) -> str:
    """Return the findings pod by pod, errors first, each with what mends it."""
    return "\n".join(_lines(pods, found))


def as_document(pods: Sequence[Examined], found: Sequence[Finding]) -> str:
    """Return the same as JSON: `{"pods": [...], "findings": [...]}`."""
    document = {
        "pods": [
            {
                "name": pod.name,
                "url": pod.url,
                "engine": pod.reading.engine if pod.reading else None,
                "version": pod.version or None,
                "model": pod.model or None,
                "window": pod.window,
                "trained_window": pod.trained,
                "block_tokens": pod.reading.block_tokens if pod.reading else None,
                "capacity_tokens": pod.reading.capacity_tokens if pod.reading else None,
                "kv_bytes_per_token": pod.kv_bytes_per_token,
                "events": pod.events,
                "trouble": pod.trouble,
            }
            for pod in pods
        ],
        "findings": [msgspec.to_builtins(finding) for finding in found],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _lines(pods: Sequence[Examined], found: Sequence[Finding]) -> Iterator[str]:
    for pod in pods:
        yield f"{pod.name}  {_described(pod)}"
        yield from _findings(pod.name, found)
        yield ""
    others = {finding.pod: None for finding in found} | {"": None}
    for name in [name for name in others if name and name not in {pod.name for pod in pods}]:
        yield f"{name}  router"
        yield from _findings(name, found)
        yield ""
    together = [finding for finding in found if not finding.pod]
    if together:
        yield "all of them"
        yield from _findings("", found)
        yield ""
    counts = {s: sum(f.severity == s for f in found) for s in ("error", "warning", "note")}
    yield ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())


def _findings(pod: str, found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        if finding.pod == pod:
            yield f"  {finding.severity:<8} {finding.check}: {finding.sentence}"
            if finding.fix:
                yield f"           → {finding.fix}"


def _described(pod: Examined) -> str:
    """Return a pod in a few words."""
    if pod.trouble is not None or pod.reading is None:
        return "not examined" if pod.trouble is not None else "no engine's metrics"
    engine = {"vllm": "vLLM", "sglang": "SGLang"}[pod.reading.engine]
    words = [f"{engine} {pod.version}".strip(), pod.model]
    if pod.reading.capacity_tokens:
        words.append(f"cache of {format_number(pod.reading.capacity_tokens)} tokens")
    if pod.reading.block_tokens:
        words.append(f"blocks of {pod.reading.block_tokens}")
    if pod.window:
        words.append(f"window of {format_number(pod.window)}")
    return " · ".join(word for word in words if word)
