"""A real trace, replayed through router and pods: Mooncake's conversations, 300 requests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.records.reader import read_frame
from kvbench.records.run import RunFolder
from kvbench.stack.local import LocalStack
from kvbench.stack.topology import PodSpec, Topology

pytestmark = [pytest.mark.traces, pytest.mark.timeout(600)]

LIMIT = 300
BLOCK = 512


@pytest.fixture
def trace() -> Path:
    """Return the trace; where to get it is in the README."""
    path = Path(os.environ.get("KVBENCH_TRACES", ".")) / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.fail("these tests need real traces: make test-traces TRACES=folder")
    return path.resolve()


def ideal(trace: Path) -> tuple[int, int]:
    """Return cached and prompt tokens of an endless cache of full blocks, from the ids alone."""
    seen: set[int] = set()
    cached = total = 0
    for line in trace.read_text().splitlines()[:LIMIT]:
        row = json.loads(line)
        tokens, ids = row["input_length"], row["hash_ids"]
        full = ids[: tokens // BLOCK]
        found = next((i for i, block in enumerate(full) if block not in seen), len(full))
        cached += BLOCK * min(found, (tokens - 1) // BLOCK)
        total += tokens
        seen.update(full)
    return cached, total


@pytest.mark.parametrize("block_size", [16, BLOCK])
def test_the_ceiling_of_a_replay_is_the_ideal_of_its_ids(trace, tmp_path, block_size):
    """Same ids, same tokens; and no pod can have had more cached than that."""
    pod = PodSpec(time_scale=0, block_size=block_size, num_gpu_blocks=4_000_000 // block_size)
    with LocalStack(Topology(pods=(pod,) * 3), tmp_path / "logs") as stack:
        command = [sys.executable, "-m", "kvbench.cli.main", "run", "--trace", str(trace)]
        limits = ["--limit", str(LIMIT), "--speed", "4", "--max-lateness", "5s"]
        ran = subprocess.run(
            [*command, *limits, "--target", stack.url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = (tmp_path / "runs").iterdir()
    folder = RunFolder.open(path)
    manifest, (frame, _) = folder.read_manifest(), read_frame(folder)
    cached, total = ideal(trace)
    assert (manifest.ids_ceiling.tokens, manifest.ids_ceiling.prompt_tokens) == (cached, total)
    assert frame["prompt_tokens"].sum() == total
    assert 0 < frame["cached_tokens"].sum() <= manifest.ceiling.tokens
    if block_size == BLOCK:
        assert manifest.ceiling == manifest.ids_ceiling
    else:  # smaller blocks reach into the last, partly filled id
        assert cached <= manifest.ceiling.tokens < cached + BLOCK * LIMIT
