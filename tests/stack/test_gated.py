"""A run with gates, as a user has it: pods, sockets, rows, snapshots, verdict, exit code."""

import sys

import pytest

from kvbench.cli.main import app
from kvbench.errors import GateFailedError
from kvbench.records.evidence import counted_hits, read_evidence
from kvbench.records.run import RunFolder
from kvbench.records.verdict import read_verdict
from kvbench.stack.local import LocalStack
from kvbench.stack.topology import PodSpec, Topology

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

WORKLOAD = """
name: small
prefixes:
  - {name: system, count: 4, tokens: 300}
sessions: {count: COUNT, turns: 3, user_tokens: 40, answer_tokens: 6, think: 0.05}
arrival: {poisson: {rate: 10}}
gates:
"""
GATES = """\
  - hit_rate >= 0.2
  - kv_usage max < 0.9
  - evictions <= 0/s
  - errors < 1%
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Two simulated pods behind a router."""
    topology = Topology(pods=(PodSpec(time_scale=0.2),) * 2)
    with LocalStack(topology, tmp_path_factory.mktemp("logs")) as running:
        yield running


def _run(stack, folder, text, monkeypatch):
    """Run the workload `text` in this process, as the command line does."""
    folder.joinpath("small.yaml").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["kvbench", "run"])
    app(["run", "small.yaml", "--target", stack.url], standalone_mode=False)


def _only_run(folder):
    (path,) = (folder / "runs").iterdir()
    return RunFolder.open(path)


def test_a_run_is_judged_by_its_workloads_gates_and_watched_meanwhile(
    stack, tmp_path, monkeypatch, capsys
):
    """Rows and pods agree to the token, and what pods said is in the verdict."""
    _run(stack, tmp_path, WORKLOAD.replace("COUNT", "12") + GATES, monkeypatch)
    folder = _only_run(tmp_path)
    evidence, verdict = read_evidence(folder), read_verdict(folder)
    assert [series.kind for series in evidence.server.values()] == ["pod", "pod", "router"]
    assert counted_hits(evidence.manifest, evidence.server) == evidence.summary.hits.cached_tokens
    assert all(len(series.at_s) >= 3 for series in evidence.server.values())
    assert verdict.decided == "passed"
    assert "passed: 4 passed" in capsys.readouterr().out


def test_a_run_whose_gate_has_failed_for_certain_ends_early_with_5(stack, tmp_path, monkeypatch):
    """Of two minutes of turns most are never sent."""
    text = WORKLOAD.replace("COUNT", "1200") + "  - ttft p50 < 1ms abort_on_fail\n"
    with pytest.raises(GateFailedError):
        _run(stack, tmp_path, text, monkeypatch)
    folder = _only_run(tmp_path)
    manifest, verdict = folder.read_manifest(), read_verdict(folder)
    assert manifest.aborted == "ttft p50 < 1ms abort_on_fail"
    assert (verdict.decided, verdict.exit_code, verdict.reasons) == ("failed", 5, [])
    assert manifest.counts.failed["not_sent"] > 1000
