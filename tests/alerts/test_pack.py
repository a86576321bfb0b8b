"""The alert pack, as Prometheus's own tool reads and plays it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kvbench.alerts import pack
from kvbench.alerts.rule import Recording
from kvbench.alerts.settings import Settings

ROOT = Path(__file__).parents[2]
ALERTS = pack.alerts(Settings())
CASES = sorted((ROOT / "alerts" / "tests").glob("*.yml"))
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def promtool(*arguments: object) -> str:
    """Run promtool (Debian's package `prometheus`) and return what it says."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.stack
def test_prometheus_takes_the_rule_files():
    """With every lint on, and fatal."""
    files = [ROOT / "alerts" / name for name in ("recording.rules.yml", "alerts.rules.yml")]

    said = promtool("check", "rules", "--lint=all", "--lint-fatal", *files)

    assert [int(n) for n in re.findall(r"(\d+) rules found", said)] == [
        sum(isinstance(rule, Recording) for rule in recorded()),
        len(ALERTS),
    ]


def recorded():
    """Return every recording rule."""
    return [rule for group in pack.recordings(Settings()) for rule in group.rules]


@pytest.mark.stack
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_an_alert_fires_and_stays_silent_as_its_cases_say(case: Path):
    """Played by promtool: idle, restarted, vanished and healthy fleets among them."""
    promtool("test", "rules", case)


@every_alert
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_all_is_silent(alert):
    """One file an alert; nothing else may fire in the second."""
    document = yaml.safe_load((ROOT / "alerts" / "tests" / f"{alert.name}.yml").read_text())
    steps = [step for test in document["tests"] for step in test["promql_expr_test"]]
    fired = [str(sample["labels"]) for step in steps for sample in step.get("exp_samples", [])]

    assert any(f'alertname="{alert.name}"' in labels for labels in fired)
    assert any("exp_samples" not in step for step in steps)


def test_every_file_of_cases_is_of_an_alert_that_there_is():
    """No case outlives its alert."""
    assert {case.stem for case in CASES} == {alert.name for alert in ALERTS}


@every_alert
def test_an_alert_has_a_runbook_that_says_what_it_means_how_to_confirm_it_and_what_to_do(alert):
    """A page of the same name, with text under each of its headings."""
    page = (ROOT / "docs" / "runbooks" / f"{alert.name}.md").read_text()
    sections = re.split(r"^##? (.+)$", page, flags=re.MULTILINE)

    assert sections[1::2] == [alert.name, "What it means", "How to confirm it", "What to do"]
    assert all(len(text.strip()) > 40 for text in sections[2::2])


def test_no_runbook_is_of_an_alert_that_is_gone():
    """And its links lead to pages that there are."""
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}

    assert set(pages) == {alert.name for alert in ALERTS}
    for text in pages.values():
        assert set(re.findall(r"\]\((\w+)\.md\)", text)) <= set(pages)


@every_alert
def test_an_alert_says_what_is_wrong_in_a_sentence_and_where_in_another(alert):
    """The summary is the same each time, so that alerts can be grouped by it."""
    assert alert.summary.endswith(".")
    assert "{{" not in alert.summary
    assert "{{ $labels." in alert.description
    document = alert.document(Settings())["annotations"]
    assert document["runbook_url"].endswith(f"/docs/runbooks/{alert.name}.md")
    assert re.search(r"/d/kvbench-[a-z-]+\?viewPanel=\d+$", document["dashboard_url"])


@pytest.mark.parametrize("rule", recorded(), ids=lambda rule: rule.record)
def test_a_recording_rule_is_named_by_level_metric_and_operations(rule):
    """`pod:` keeps pods apart, `model:` does not."""
    level, _, operations = rule.record.split(":")

    assert level in {"pod", "model"}
    assert re.fullmatch(r"(ratio_)?rate\d+[smhd]|sum|max|bool|ratio", operations)


def test_the_manifest_holds_the_same_rules():
    """For the Prometheus operator, which wants them in a resource of its own."""
    folder = ROOT / "alerts"
    resource = yaml.safe_load((folder / "prometheusrule.yml").read_text())
    groups = [
        group
        for name in ("recording.rules.yml", "alerts.rules.yml")
        for group in yaml.safe_load((folder / name).read_text())["groups"]
    ]

    assert (resource["apiVersion"], resource["kind"]) == (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
    )
    assert resource["spec"]["groups"] == groups


def test_the_page_of_dashboards_lists_every_alert():
    """With its severity, and whose metrics it needs."""
    page = (ROOT / "docs" / "dashboards" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(\S+\) \| (\w+) \| (\w+) \| (.+) \|$", page, re.MULTILINE)

    assert rows == [(a.name, a.severity, a.needs, a.summary) for a in ALERTS]
