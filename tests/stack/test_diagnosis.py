"""What is wrong with pods, by what they say of themselves: each check, both ways."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.metrics import engines
from kvbench.metrics.exposition import Lengths, Reading
from kvbench.stack.diagnosis import diagnose, trained_window
from kvbench.stack.examined import Examined, SeenRouter, Wish

CACHE = {
    "block_size": "16",
    "num_gpu_blocks": "1001",
    "kv_cache_size_tokens": "16016",
    "enable_prefix_caching": "True",
    "prefix_caching_hash_algo": "sha256_cbor",
    "gpu_memory_utilization": "0.92",
    "num_gpu_blocks_override": "None",
    "cache_hit_alignment_tokens": "16",
}
ALL = frozenset(
    name for q in engines.QUANTITIES for name in q.names if engines.engine_of(name) == "vllm"
)
NEW = frozenset(q.names[0] for q in engines.QUANTITIES if engines.engine_of(q.names[0]) == "vllm")


def pod(name: str = "a", *, cache: dict[str, str] | None = None, **changes) -> Examined:
    """Return a pod with which all is well, but for these labels and changes."""
    reading = Reading(
        engine="vllm",
        model="m",
        numbers={"process_start_time_seconds": 1.0, "started": 1.0},
        cache=[CACHE | (cache or {})],
        declared=NEW,
    )
    well = Examined(
        name,
        f"http://{name}",
        model="m",
        window=1000,
        trained=4096,
        version="0.32.0",
        reading=reading,
        bounds={"ttft": (0.5, 1.0, 2.5), "itl": (0.05, 0.1)},
        told=True,
        cached=32,
        events="heard",
        event_block=16,
        kv_bytes_per_token=131072,
    )
    return replace(well, **changes)


def reading_of(examined: Examined, **changes) -> Examined:
    """Return a pod whose metrics say something else."""
    return replace(examined, reading=replace(examined.reading, **changes))


def found(*pods: Examined, wish: Wish | None = None) -> list[tuple[str, str, str]]:
    """Return severity, check and fix of what is found."""
    return [(f.severity, f.check, f.fix) for f in diagnose(pods, wish or Wish())]


def test_with_pods_that_are_well_nothing_is_found():
    """Not even a note."""
    assert found(pod("a"), pod("b")) == []


@pytest.mark.parametrize(
    ("examined", "severity", "check", "fix"),
    [
        pytest.param(pod(trouble="no"), "error", "reachable", "", id="not reachable"),
        pytest.param(
            pod(reading=None), "error", "metrics", "--disable-log-stats", id="without metrics"
        ),
        pytest.param(pod(unhealthy="down"), "error", "healthy", "", id="down for its router"),
        pytest.param(pod(draining=True), "note", "healthy", "/pods/a/resume", id="drained"),
        pytest.param(
            pod(cache={"enable_prefix_caching": "False"}), "error", "prefix-caching",
            "--enable-prefix-caching", id="prefix caching off",
        ),
        pytest.param(
            pod(told=False, cached=0), "warning", "cached-tokens",
            "--enable-prompt-tokens-details", id="does not tell",
        ),
        pytest.param(pod(cached=0), "error", "hits", "--enable-prefix-caching", id="no hit"),
        pytest.param(
            pod(trained=512), "error", "trained-window", "--max-model-len 512", id="too long"
        ),
        pytest.param(pod(events="off"), "warning", "events", "--kv-events-config", id="no events"),
        pytest.param(pod(events="silent"), "error", "events", "--kv-events-config", id="silent"),
        pytest.param(pod(events="unknown"), "note", "events", "--kv-events-config", id="unheard"),
        pytest.param(pod(event_block=32), "warning", "block-size", "", id="events say otherwise"),
        pytest.param(
            pod(cache={"cache_hit_alignment_tokens": "1920"}), "warning", "block-size", "",
            id="hits in multiples of 1,920",
        ),
        pytest.param(
            pod(cache={"block_size": "128"}, event_block=128), "note", "block-size",
            "--block-size 16", id="large blocks",
        ),
        pytest.param(
            pod(cache={"gpu_memory_utilization": "0.7"}), "warning", "utilization",
            "--gpu-memory-utilization 0.92", id="cache given away",
        ),
        pytest.param(
            pod(cache={"gpu_memory_utilization": "0.98"}), "note", "utilization",
            "--gpu-memory-utilization 0.92", id="nothing left for peaks",
        ),
        pytest.param(
            pod(cache={"num_gpu_blocks_override": "1001"}), "warning", "capacity",
            "--num-gpu-blocks-override", id="a number of blocks by hand",
        ),
        pytest.param(
            pod(window=8000, trained=8000), "warning", "concurrency", "--max-model-len",
            id="two long requests fill it",
        ),
        pytest.param(
            pod(cache={"prefix_caching_hash_algo": "builtin"}), "warning", "hashes", "sha256",
            id="hash()",
        ),
        pytest.param(
            pod(cache={"prefix_caching_hash_algo": "sha256"}), "note", "hashes", "sha256_cbor",
            id="names that differ from process to process",
        ),
        pytest.param(
            reading_of(pod(), declared=NEW - {"vllm:prefix_cache_hits_total"}), "warning",
            "metrics", "a newer engine", id="a metric is missing",
        ),
        pytest.param(
            reading_of(
                pod(),
                declared=NEW - {"vllm:kv_cache_usage_perc"} | {"vllm:gpu_cache_usage_perc"},
            ),
            "note", "metrics", "", id="an old name",
        ),
        pytest.param(reading_of(pod(), numbers={}), "note", "metrics", "", id="ageless"),
        pytest.param(
            reading_of(pod(), numbers={"started": 1.0, "usage": 0.97, "preemptions": 4.0}),
            "warning", "preemptions", "--max-num-seqs", id="thrash",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_found_alone_with_what_mends_it(examined, severity, check, fix):
    """One finding, and it names the flag."""
    findings = found(examined)

    assert [(s, c) for s, c, _ in findings] == [(severity, check)]
    assert fix in findings[0][2]


def test_an_objective_between_buckets_comes_with_the_flag_that_adds_its_bound():
    """On a bound there is nothing to say; beyond the last there is."""
    wish = Wish(None, ((engines.TTFT, 0.8), (engines.ITL, 0.1)))
    (finding,) = diagnose([pod()], wish)

    assert finding.check == "objectives"
    assert "TTFT of 800 ms lies between buckets (500 ms and 1 s)" in finding.sentence
    flag = "--custom-histogram-buckets '{\"time_to_first_token\":[0.5,0.8,1,2.5]}'"
    assert finding.fix.startswith(flag)
    (beyond,) = diagnose([pod()], Wish(None, ((engines.TTFT, 9.0),)))
    assert "over all of them" in beyond.sentence


def test_block_sizes_are_compared_with_what_is_expected():
    """By a router or a gateway that computes names of blocks itself."""
    assert found(pod(), wish=Wish(block_size=16)) == []
    ((severity, check, fix),) = found(pod(), wish=Wish(block_size=32))
    assert (severity, check) == ("error", "block-size")
    assert fix.startswith("--block-size 32")


def test_utilization_is_told_in_tokens():
    """What the cache has now, and what each GiB more would hold."""
    (finding,) = diagnose([pod(cache={"gpu_memory_utilization": "0.7"})], Wish())

    assert "16,000 tokens" in finding.sentence
    assert "each GiB more holds 8,192 tokens" in finding.sentence


def test_a_window_that_requests_do_not_need_is_told_by_what_they_had():
    """From the engine's own histogram of prompts."""
    lengths = Lengths((100.0, 500.0, float("inf")), (90.0, 200.0, 201.0), 9000.0)
    long = reading_of(pod(window=8000, trained=8000), lengths={"prompt_lengths": lengths})
    (finding,) = diagnose([long], Wish())

    assert "2.0 requests of the longest kind (8,000 tokens)" in finding.sentence
    assert "99 % of 201 prompts had at most 500" in finding.sentence


@pytest.mark.parametrize(
    ("other", "severity", "check"),
    [
        pytest.param(pod("b", model="n"), "error", "models", id="models"),
        pytest.param(pod("b", window=900), "warning", "windows", id="windows"),
        pytest.param(pod("b", version="0.31.0"), "note", "versions", id="versions"),
        pytest.param(
            pod("b", cache={"block_size": "32"}, event_block=32), "error", "block-size",
            id="block sizes",
        ),
        pytest.param(
            pod("b", cache={"prefix_caching_hash_algo": "xxhash"}), "warning", "hashes",
            id="names",
        ),
        pytest.param(
            pod("b", cache={"cache_dtype": "fp8"}), "warning", "cache-type", id="cache types"
        ),
    ],
)  # fmt: skip
def test_pods_of_one_fleet_must_agree(other, severity, check):
    """What they differ in is found once, for all of them."""
    findings = diagnose([pod("a"), other], Wish())

    assert [(f.severity, f.check, f.pod) for f in findings] == [(severity, check, "")]
    assert "a: " in findings[0].sentence
    assert "b: " in findings[0].sentence


@pytest.mark.parametrize(
    ("router", "severity", "check"),
    [
        pytest.param(
            SeenRouter("r", {"a": "degraded"}, {}), "warning", "router-trust", id="lost events"
        ),
        pytest.param(SeenRouter("r", {"a": "cold"}, {}), "note", "router-trust", id="no events"),
        pytest.param(
            SeenRouter("r", {"a": "exact"}, {"m": False}), "warning", "router-tokens", id="tokens"
        ),
    ],
)
def test_a_router_that_cannot_score_exactly_says_why(router, severity, check):
    """One that can is well."""
    findings = diagnose([pod()], Wish(), [router])

    assert [(f.severity, f.check, f.pod) for f in findings] == [(severity, check, "r")]
    assert diagnose([pod()], Wish(), [SeenRouter("r", {"a": "exact"}, {"m": True})]) == []


def test_errors_come_first():
    """Then warnings, then notes."""
    bad = pod(cache={"gpu_memory_utilization": "0.7"}, events="unknown", cached=0)

    assert [severity for severity, _, _ in found(bad)] == ["error", "warning", "note"]


@pytest.mark.parametrize(
    ("config", "window"),
    [
        pytest.param({"max_position_embeddings": 8192}, 8192, id="as it stands"),
        pytest.param({}, None, id="not said"),
        pytest.param(
            {"text_config": {"max_position_embeddings": 4096}}, 4096, id="of a multimodal model"
        ),
        pytest.param(
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192
                },
            },
            131072,
            id="stretched already",
        ),
        pytest.param(
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768
                },
            },
            131072,
            id="stretched by its configuration",
        ),
    ],
)  # fmt: skip
def test_the_trained_window_is_what_the_configuration_says(config, window):
    """As vLLM derives it."""
    assert trained_window(config) == window


def test_every_check_has_its_row_in_the_docs_and_every_row_its_check():
    """With all the severities that it may have."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "doctor.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|", page, re.MULTILINE))
    source = (root / "kvbench" / "stack" / "diagnosis.py").read_text()
    checks = re.findall(r'"([a-z-]+)", "(error|warning|note)"', source)

    levels = {"degraded", "cold"}  # of trust, which stand before a severity too
    assert {c for c, _ in checks} - levels | {"concurrency", "router-trust"} == set(rows)
    assert [(c, s) for c, s in checks if c not in levels and s not in rows[c]] == []
