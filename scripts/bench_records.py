"""How long a million rows take: read, Parquet, statistics, gates, report; seconds and peak memory.

python scripts/bench_records.py [ROWS GAPS_PER_ROW]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kvbench import seeds
from kvbench.gates.grammar import parse_gate
from kvbench.gates.judge import judge
from kvbench.records.evidence import read_evidence
from kvbench.records.manifest import Manifest
from kvbench.records.reader import read_frame, write_parquet
from kvbench.records.run import RunFolder
from kvbench.records.schema import TurnRecord
from kvbench.records.summary import summarise
from kvbench.report.page import build_report

if TYPE_CHECKING:
    from collections.abc import Callable


_GATES = (
    "ttft p95 < 5s",
    "ttft{turn>1} p99 < 9s",
    "tpot p95 < 1s",
    "itl p99 < 50ms",
    "hit_rate > 0.4 of ceiling",
    "errors < 0.1%",
    "goodput(ttft < 1s, tpot < 40ms) >= 0.5",
    "balance max/mean < 1.3",
)


def _row(index: int, gaps: int) -> TurnRecord:
    chance = seeds.rng(1, index)
    sent = index * 0.01 + chance.random() * 1e-3
    first = sent + chance.lognormvariate(-1, 0.7)
    steps = [0.02 * chance.random() for _ in range(gaps)]
    prompt = 1000 + chance.randrange(4000)
    return TurnRecord(
        index=index,
        session=f"session-{index // 8}",
        turn=index % 8 + 1,
        group=f"group-{index % 50}",
        intended_s=index * 0.01,
        sent_s=sent,
        headers_s=sent + 0.001,
        first_token_s=first,
        first_answer_s=first,
        last_token_s=first + sum(steps),
        end_s=first + sum(steps),
        chunk_gaps_s=steps,
        first_read_chunks=1,
        status=200,
        finish_reason="length",
        planned_prompt_tokens=prompt,
        prompt_tokens=prompt,
        cached_tokens=int(prompt * chance.random() * 0.9) // 16 * 16,
        completion_tokens=gaps + 1,
        ceiling_tokens=prompt * 9 // 10,
        max_tokens=gaps + 1,
        pod=f"10.0.0.{index % 8}:8000",
        policy="prefix",
        predicted_tokens=prompt // 2,
        request_id=f"{index:032x}",
    )


def _measure(what: str, act: Callable[[], object]) -> None:
    began, worked = time.perf_counter(), time.process_time()
    act()
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{what:18} {seconds:7.2f} s  cpu {cpu:7.2f} s  peak {peak:5.2f} GiB", flush=True)


def _write(folder: RunFolder, rows: int, gaps: int) -> None:
    encoder = msgspec.json.Encoder()
    patterns = [_row(i, gaps) for i in range(min(rows, 20_000))]
    with folder.rows_path(0).open("wb") as file:
        for i in range(rows):
            record = patterns[i % len(patterns)]
            file.write(encoder.encode(replace(record, index=i, intended_s=i * 0.01)) + b"\n")
    folder.write_manifest(Manifest(state="finished", planned_turns=rows, arm="prefix"))


def main(rows: int, gaps: int) -> None:
    """Measure on a run of `rows` rows with `gaps` chunk gaps each."""
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root))
        _write(folder, rows, gaps)
        size = folder.rows_path(0).stat().st_size / 2**20
        print(f"{rows} rows, {gaps} gaps each: {size:.0f} MiB of JSON lines")
        manifest = folder.read_manifest()
        _measure("read JSON lines", lambda: read_frame(folder))
        _measure("write Parquet", lambda: write_parquet(folder))
        _measure("read Parquet", lambda: read_frame(folder))
        _measure("and summarise", lambda: summarise(read_frame(folder)[0], manifest))
        _measure("gate", lambda: judge(read_evidence(folder), [parse_gate(g) for g in _GATES]))
        _measure("report.html", lambda: build_report([folder.path], Path(root) / "report.html"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["1000000", "30"]))
