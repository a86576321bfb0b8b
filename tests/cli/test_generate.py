"""`kvbench generate` and `kvbench dashboards`, as they are typed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.errors import InputError, TargetError


def run(*words):
    """Run a command line and return its result."""
    return CliRunner().invoke(app, list(map(str, words)))


def test_everything_is_written_into_a_folder_with_objectives_and_links_of_ones_own(tmp_path):
    """Rules and boards agree on the objective."""
    links = ["--grafana", "https://g.example", "--runbooks", "https://r.example"]
    done = run("generate", "--into", tmp_path, "--ttft", "99%<2.5s", *links)

    assert done.exit_code == 0
    assert str(tmp_path / "alerts" / "alerts.rules.yml") in done.output
    rules = (tmp_path / "alerts" / "alerts.rules.yml").read_text()
    assert "runbook_url: https://r.example/KVBenchPodDown.md" in rules
    assert "dashboard_url: https://g.example/d/kvbench-fleet?viewPanel=" in rules
    assert "model:ttft_late:ratio_rate5m > 0.144" in rules
    recorded = (tmp_path / "alerts" / "recording.rules.yml").read_text()
    assert 'le=~"2\\\\.5"' in recorded
    fleet = json.loads((tmp_path / "dashboards" / "fleet.json").read_text())
    tile = next(panel for panel in fleet["panels"] if panel["title"] == "Within objective")
    assert "within 2.5 s" in tile["description"]


def test_an_objective_of_one_engine_alone_is_written_and_said_to_be_one(tmp_path):
    """On stderr; who has only that engine is content."""
    done = run("generate", "--into", tmp_path, "--ttft", "99%<2.5s")

    assert done.exit_code == 0
    assert done.stderr == (
        "kvbench: --ttft: sglang has no bucket that ends at 2.5 s: alerts on this objective "
        "cannot watch sglang pods; all engines have 1 or 10 s\n"
    )


def test_check_writes_nothing_and_names_what_is_stale(tmp_path):
    """For CI."""
    done = run("generate", "--into", tmp_path, "--check")

    assert isinstance(done.exception, InputError)
    assert done.exception.message.startswith("stale: alerts/recording.rules.yml, ")
    assert done.exception.hint == "kvbench generate"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ttft", "95%<1.1s"], "--ttft: expected a bound of an engine's buckets, got 1.1 s"),
        (["--itl", "quick"], "--itl: expected an objective such as \"95%<1s\", got 'quick'"),
    ],
)
def test_an_objective_that_cannot_be_counted_is_named(words, message, tmp_path):
    """Before anything is written."""
    done = run("generate", "--into", tmp_path, *words)

    assert isinstance(done.exception, InputError)
    assert done.exception.message.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_prometheus_is_said_at_once():
    """With exit code 3."""
    done = run("dashboards", "--prometheus", "http://127.0.0.1:9")

    assert isinstance(done.exception, TargetError)
    assert done.exception.message.startswith("http://127.0.0.1:9: expected Prometheus, got")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--without", "pods"], "--without: expected exporter, router or load, got pods"),
        (["--last", "soon"], "--last: expected a duration such as"),
    ],
)
def test_a_wrong_option_is_named(words, message):
    """Nothing is asked before."""
    done = run("dashboards", *words)

    assert isinstance(done.exception, InputError)
    assert done.exception.message.startswith(message)
