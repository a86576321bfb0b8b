"""Real traces of three formats: their plans have the hits that the files themselves imply."""

import csv
import json
import os
from pathlib import Path

import fakes_workload
import pytest

from kvbench.oracle.ceiling import ceiling
from kvbench.workload.hash_rows import HashRow
from kvbench.workload.reading import TraceOptions
from kvbench.workload.trace import read_trace

pytestmark = pytest.mark.traces


@pytest.fixture
def traces() -> Path:
    """Return the folder of traces; where to get them is in workloads/README.md."""
    return Path(os.environ.get("KVBENCH_TRACES", ".")).resolve()


def test_mooncakes_conversations_have_the_ceiling_of_their_ids(traces):
    """All 12,031 rows: 37.34 % of the tokens, exactly as the ids say."""
    path = traces / "mooncake_conversation_trace.jsonl"
    plan = read_trace(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    hash_rows = [
        HashRow(
            timestamp=row["timestamp"],
            input_length=row["input_length"],
            output_length=row["output_length"],
            hash_ids=row["hash_ids"],
        )
        for row in rows
    ]
    assert len(plan.turns) == len(rows)
    rate = ceiling(plan, None, 512).hit_rate
    assert rate == fakes_workload.ideal_hit_rate(hash_rows)
    assert rate == pytest.approx(0.3734, abs=1e-4)


def test_wekas_conversations_have_the_ceiling_of_their_ids(traces):
    """Ids are local to their files; the last token of a prompt is computed."""
    hits = total = 0
    for path in sorted((traces / "weka").glob("*.json")):
        seen: set[tuple[int, ...]] = set()
        for request in json.loads(path.read_text())["requests"]:
            ids, tokens = tuple(request["hash_ids"]), request["in"]
            known = 0
            while known < min(len(ids), (tokens - 1) // 64) and ids[: known + 1] in seen:
                known += 1
            hits += 64 * known
            total += tokens
            seen.update(ids[: i + 1] for i in range(len(ids)))
    top = ceiling(read_trace(traces / "weka"), None, 64)
    assert (sum(top.cached_tokens), sum(top.prompt_tokens)) == (hits, total)
    assert top.hit_rate > 0.8


def test_tracelabs_sessions_hit_what_they_were_planned_to(traces):
    """All of `prefix_len`, less the last token of each answer that is repeated: 81.66 %."""
    path = traces / "tracelab" / "multi_session_large.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    kept = sum(int(row["prefix_len"]) for row in rows)
    whole = kept + sum(int(row["input_len"]) for row in rows)
    repeated = sum(int(row["round_idx"]) > 0 for row in rows)
    top = ceiling(read_trace(path, TraceOptions(history="answers")), None, 1)
    assert (sum(top.cached_tokens), sum(top.prompt_tokens)) == (kept - repeated, whole)
    assert kept / whole == pytest.approx(0.8166, abs=1e-4)


def test_recorded_rounds_have_the_lengths_that_the_provider_counted(traces):
    """Prompt and answer of each of the nineteen rounds."""
    path = traces / "tracelab" / "round_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    counted = {
        (row["session_id"], row["round_index"] + 1): (
            row["input_tokens_total"],
            row["output_tokens"],
        )
        for row in rows
    }
    plan = read_trace(path)
    assert counted == {(t.session, t.turn): (t.content_tokens, t.max_tokens) for t in plan.turns}
    assert all(0 <= t.think < 3600 for t in plan.turns)
