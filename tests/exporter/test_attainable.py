"""The attainable hit rate, read off events and scrapes, is the ceiling that the plan has."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvbench.metrics import exporter as metrics
from kvbench.records.reader import read_frame
from kvbench.records.run import RunFolder
from kvbench.records.stats import hits
from kvbench.stack.local import LocalStack
from kvbench.stack.process import Child, kvbench_command
from kvbench.stack.target import fetch
from kvbench.stack.topology import PodSpec, RouterSpec, Topology

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

WORKLOAD = """
name: small
api: chat
seed: 3
prefixes:
  - {name: system, count: 6, tokens: 300}
sessions: {count: 60, turns: 3, user_tokens: 120, answer_tokens: 6, think: 0.05}
arrival: {poisson: {rate: 10}}
"""


def sums(url: str) -> dict[str, float]:
    """Return what an exporter shows, summed over labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(fetch(f"{url}/metrics").decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        pytest.param("round_robin", 150, id="spread, in a tight cache"),
        pytest.param("round_robin", 2000, id="spread, with room for all"),
        pytest.param("prefix_cost", 2000, id="to where the prefix is"),
    ],
)
def test_whatever_the_policy_and_the_cache_the_attainable_rate_is_the_plans_ceiling(
    policy, blocks, tmp_path
):
    """Hits differ, by where turns went and what was evicted; what was possible does not."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    pods = (PodSpec(time_scale=0.2, num_gpu_blocks=blocks, max_model_len=2048),) * 3
    topology = Topology(pods=pods, router=RouterSpec(policy))
    with LocalStack(topology, tmp_path) as stack:
        command = kvbench_command(
            "exporter", f"--router={stack.url}", "--every=0.1", "--exit-with-parent"
        )
        with Child("exporter", command, tmp_path / "exporter.log") as child:
            url = child.wait_ready(60)

            def until(metric, value: float) -> None:
                for _ in range(200):
                    if sums(url).get(metric.name, 0.0) >= value:
                        return
                    child.wait(0.1)
                pytest.fail(f"{metric.name}: {sums(url).get(metric.name)}, not {value}")

            until(metrics.UP, len(pods))
            run = kvbench_command("run", "small.yaml", "--target", stack.url, "--no-preflight")
            done = subprocess.run(
                run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
            )
            assert done.returncode in {0, 4}, done.stderr  # 4: late on a busy machine
            until(metrics.REQUESTS, 180)
            child.wait(0.3)
            shown = sums(url)
    (folder,) = (tmp_path / "runs").iterdir()
    frame, _ = read_frame(RunFolder.open(folder))
    measured = hits(frame)
    queried = shown[metrics.QUERIED_TOKENS.name]

    assert queried == frame["prompt_tokens"].sum()
    assert shown[metrics.HIT_TOKENS.name] / queried == pytest.approx(measured.rate)
    attainable = shown[metrics.ATTAINABLE_TOKENS.name] / queried
    assert attainable == pytest.approx(measured.ceiling, abs=0.02)
    assert (measured.rate < 0.9 * measured.ceiling) == (policy == "round_robin")
