"""vLLM's families, against the scrape of a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.metrics import vllm

RECORDED = [
    line.split(" ")
    for line in (Path(__file__).parent / "vllm_families.txt").read_text().splitlines()
    if not line.startswith("#")
]
DECLARED = {metric.name: metric for metric in vllm.families(8192)}


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row[1])
def test_a_family_is_declared_as_a_real_vllm_serves_it(row: list[str]):
    """Name, kind, labels, buckets, and the values of a third label in their order."""
    kind, name, labels, values = row
    metric = DECLARED[name]
    assert metric.kind == kind
    assert ",".join(sorted(metric.labels)) == labels
    if kind == "histogram":
        assert ",".join([*map(str, metric.buckets), "+Inf"]) == values
    else:
        assert ",".join(vllm.LABEL_VALUES.get(name, ("-",))) == values


def test_no_family_is_declared_that_a_real_vllm_does_not_serve():
    """Nor is one missing."""
    assert set(DECLARED) == {row[1] for row in RECORDED}


@pytest.mark.parametrize(
    ("max_model_len", "last"), [(8192, 5000.0), (10_000, 10_000.0), (131_072, 100_000.0), (1, 1.0)]
)
def test_buckets_of_lengths_end_within_the_models_context(max_model_len: int, last: float):
    """1, 2, 5, 10, …, as far as there can be observations."""
    buckets = vllm.length_buckets(max_model_len)
    assert buckets[0] == 1.0
    assert buckets[-1] == last
    assert list(buckets) == sorted(buckets)
