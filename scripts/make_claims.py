"""Writes docs/claims.md: claims that are going round, each with a command and what it gave here.

python scripts/make_claims.py [--check]

Everything is played in virtual time, so the numbers are the same on every machine, and `--check`
says whether the committed file is still what the commands give.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml

from kvbench.stack.process import kvbench_command
from kvbench.units import format_seconds, format_share

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "claims.md"
BLOCKS = ["--blocks", "20000"]

HEAD = """\
# Claims, tested

What is said about prefix caching and routing, with the command that tests it and what it gave.
Made by `scripts/make_claims.py`; nothing here is typed by hand but the sentences.
All of it is virtual time: hits are those that vLLM would have, to the token. Times are those of a
profile: ratios and shapes mean something, milliseconds of your hardware do not come from here.
"""


def kvbench(*arguments: str) -> tuple[str, dict[str, object]]:
    """Run a command that prints JSON; return its line for people, and what it printed."""
    command = [*arguments, "--json"]
    done = subprocess.run(  # noqa: S603 - our own command line
        kvbench_command(*command), capture_output=True, text=True, check=True, cwd=ROOT
    )
    shown = " ".join(Path(word).name if word.startswith("/") else word for word in arguments)
    return f"kvbench {shown}", json.loads(done.stdout)


def simulate(file: str, policy: str, *more: str) -> tuple[str, dict[str, object]]:
    """Play a file under a policy."""
    return kvbench("simulate", file, "--policy", policy, *more)


def section(title: str, claim: str, commands: list[str], rows: list[list[str]], says: str) -> str:
    """Return one claim."""
    table = [f"| {' | '.join(cells)} |" for cells in rows]
    table.insert(1, "|" + "---|" * len(rows[0]))
    block = "\n".join(["```", *dict.fromkeys(commands), "```"])
    return "\n\n".join([f"## {title}", f"*{claim}*", block, "\n".join(table), says])


def _ttft(run: dict[str, object], which: str) -> float:
    times = run["ttft_s"]
    assert isinstance(times, dict)
    return float(times[which])


def _busiest(run: dict[str, object]) -> str:
    pods, requests = run["pods"], run["requests"]
    assert isinstance(pods, list)
    assert isinstance(requests, int)
    return format_share(max(pod["requests"] for pod in pods) / requests)


def _rate(run: dict[str, object], key: str = "hit_rate") -> float:
    value = run[key]
    assert isinstance(value, float)
    return value


def single_prompt() -> str:
    """The hit rate of one prompt sent thirty times."""
    rows = [["pods", "policy", "hit rate", "possible", "busiest pod"]]
    commands = []
    for pods, policy in (("1", "round_robin"), ("3", "round_robin"), ("3", "session")):
        line, run = simulate("workloads/single-prompt.yaml", policy, "--pods", pods, "--serial")
        commands.append(line)
        rows.append(
            [pods, policy, format_share(_rate(run)), format_share(_rate(run, "ceiling")),
             _busiest(run)]
        )  # fmt: skip
    return section(
        "87.4 % hit rate",
        "A published dashboard shows 87.4 % of prompt tokens cached, under prefix-aware routing.",
        commands,
        rows,
        "One prompt of 159 tokens sent thirty times gives this number on a single pod, and nothing "
        "better is possible: the last block is never full. Spread over three pods it loses two "
        "cold starts and no more, under any policy. The number says that the cache is switched on. "
        "It says nothing about routing.",
    )


def policies() -> str:
    """Round robin against prefix-aware routing at several loads."""
    rows = [["speed", "policy", "hit rate", "TTFT p50", "TTFT p95", "p50 saved", "p95 saved"]]
    commands = []
    for speed in ("0.1", "0.25", "0.5", "1"):
        more = ["--pods", "4", "--profile", "llama-3.1-8b-l4", "--speed", speed]
        first, base = simulate("workloads/chat.yaml", "round_robin", *more)
        second, aware = simulate("workloads/chat.yaml", "prefix_cost", *more)
        commands += [first, second]
        for name, run in (("round_robin", base), ("prefix_cost", aware)):
            saved = [
                "" if run is base else format_share(1 - _ttft(aware, q) / _ttft(base, q))
                for q in ("p50", "p95")
            ]
            times = [format_seconds(_ttft(run, q)) for q in ("p50", "p95")]
            rows.append([speed, name, format_share(_rate(run)), *times, *saved])
    return section(
        "88 % less time to first token",
        "Prefix-aware routing is said to cut the time to first token by 88 %.",
        commands,
        rows,
        "There is no such number without a load. What routing saves on an idle fleet is the "
        "prefill of the missed tokens; near the knee it is the queue as well, and beyond it a "
        "multiple that says more about the load than about the routing. `kvbench ladder` asks the "
        "better question: how much load does each take?",
    )


def targets() -> str:
    """The 80 % target against the ceilings of five workloads."""
    rows = [["workload", "possible", "prefix_cost on 4 pods", "of the possible"]]
    commands = []
    for name in ("chat", "rag", "long-document", "tenants-zipf", "single-prompt"):
        line, run = simulate(f"workloads/{name}.yaml", "prefix_cost", "--pods", "4", *BLOCKS)
        commands.append(line)
        rate, top = _rate(run), _rate(run, "ceiling")
        rows.append([name, format_share(top), format_share(rate), format_share(rate / top)])
    return section(
        "A hit rate of 80 % is the target",
        "A hit rate of 80 % is often given as the target, whatever the traffic.",
        commands,
        rows,
        "What is possible is a property of the traffic. A target belongs to the share of it that "
        "is attained: `hit_rate > 0.95 of ceiling`.",
    )


def utilisation() -> str:
    """What gpu_memory_utilization gives in tokens."""
    rows = [["utilisation", "KV cache", "tokens"]]
    commands = []
    for share in ("0.7", "0.8", "0.9"):
        line, facts = kvbench(
            "size", "llama-3.1-8b", "--gpu", "a100-40", "--max-model-len", "8192",
            "--gpu-memory-utilization", share,
        )  # fmt: skip
        capacity, size = facts["capacity"], facts["kv_cache_bytes_per_gpu"]
        assert isinstance(capacity, dict)
        assert isinstance(size, int)
        commands.append(line)
        rows.append([share, f"{size / 2**30:.2f} GiB", f"{capacity['tokens']:,}"])
    return section(
        "gpu_memory_utilization of 0.7 is the safe choice",
        "0.7 is recommended to leave room, against 0.9.",
        commands,
        rows,
        "The weights take their part first, so what is taken from the share is taken from the "
        "cache alone: it shrinks by far more than the share does.",
    )


def strategies() -> str:
    """What a client does when the conversation outgrows the window."""
    spec = yaml.safe_load((ROOT / "workloads" / "context-growth.yaml").read_text(encoding="utf-8"))
    contexts: dict[str, object] = {
        "append": "append",
        "drop_oldest": {"drop_oldest": {"window": 8192}},
        "gist": {"gist": {"window": 8192, "keep": 1600}},
        "gist_recent": {"gist_recent": {"window": 8192, "keep": 1600, "recent": 3200}},
    }
    rows = [["context", "possible", "hit rate", "prompt tokens", "TTFT p95"]]
    commands = []
    with tempfile.TemporaryDirectory() as folder:
        for name, context in contexts.items():
            file = Path(folder) / f"context-growth-{name}.yaml"
            file.write_text(yaml.safe_dump({**spec, "context": context}), encoding="utf-8")
            line, run = simulate(str(file), "prefix_cost", "--pods", "2", *BLOCKS)
            commands.append(line)
            rows.append(
                [name, format_share(_rate(run, "ceiling")), format_share(_rate(run)),
                 f"{run['prompt_tokens']:,}", format_seconds(_ttft(run, "p95"))]
            )  # fmt: skip
    return section(
        "Dropping old messages keeps the context cheap",
        "When a conversation outgrows its window, the usual client drops its oldest messages.",
        commands,
        rows,
        "Dropping from the front moves all that follows, and the cache finds nothing behind the "
        "shared prefix any more. Keeping the beginning keeps it cached. (The files are "
        "`workloads/context-growth.yaml` with another `context`.)",
    )


_JOIN_S = 120
_WINDOWS = (("before", -60, 0), ("first 30 s", 0, 30), ("30–60 s", 30, 60), ("1–2 min", 60, 120))


def new_pod() -> str:
    """What a pod that joins under load gets, and what it does to the others."""
    rows = [["policy", "time since", "new pod: turns", "its hit rate", "the others'", "TTFT p95"]]
    commands = []
    for policy in ("round_robin", "chwbl", "prefix_cost"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.jsonl"
            line, _ = simulate(
                "workloads/chat.yaml", policy, "--pods", "4", "--profile", "llama-3.1-8b-l4",
                "--speed", "0.5", "--join", str(_JOIN_S), "--rows", str(file),
            )  # fmt: skip
            played = pd.read_json(file, lines=True)
        commands.append(line)
        for name, since, until in _WINDOWS:
            window = played[(played.arrival_s - _JOIN_S).between(since, until, "left")]
            new = window.pod == "pod-4"
            rows.append(
                [policy, name, format_share(new.mean()), _hits(window[new]), _hits(window[~new]),
                 format_seconds(window.ttft_s.quantile(0.95, "higher"))]
            )  # fmt: skip
    return section(
        "A new pod is cold",
        "A pod that joins has an empty cache: it lowers the hit rate, and prefix-aware routing "
        "avoids it for ever.",
        commands,
        rows,
        "Three pods serve; a fourth joins after two minutes. An even spread gives it its share at "
        "once, cold; a bounded-load ring gives it the sessions that are now nearest, each cold "
        "once. Where the cache is weighed against the queue, the new pod gets what nobody has "
        "cached and what waits too long elsewhere, and its hit rate follows.",
    )


def _hits(turns: pd.DataFrame) -> str:
    """Return the hit rate of some turns; of none, a dash."""
    tokens = turns.prompt_tokens.sum()
    return format_share(turns.cached_tokens.sum() / tokens) if tokens else "–"


def main() -> None:
    """Write the page, or check it."""
    parts = [HEAD, single_prompt(), policies(), targets(), utilisation(), strategies(), new_pod()]
    page = "\n\n".join(part.strip() for part in parts) + "\n"
    if "--check" in sys.argv:
        if not OUT.is_file() or OUT.read_text(encoding="utf-8") != page:
            sys.exit(f"{OUT} is stale: run scripts/make_claims.py")
        return
    OUT.write_text(page, encoding="utf-8")
    print(OUT)


if __name__ == "__main__":
    main()
