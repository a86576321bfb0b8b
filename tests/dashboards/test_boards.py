"""What a dashboard of ours may be: linted by its JSON, as Grafana gets it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kvbench.alerts import pack
from kvbench.alerts.rule import board_uid
from kvbench.alerts.settings import Settings
from kvbench.dashboards.boards import boards, files
from kvbench.dashboards.panel import NEEDS, places
from kvbench.dashboards.replay import Span, filled
from kvbench.metrics import dcgm, engines, vllm
from kvbench.metrics.catalogue import CATALOGUE
from kvbench.metrics.promql import panel_id

SETTINGS = Settings()
BOARDS = boards(SETTINGS)
JSON = {name: json.loads(text) for name, text in files(SETTINGS).items()}
PANELS = [(board, panel) for board in BOARDS for panel in board.panels]
QUERIES = [(board, panel, query) for board, panel in PANELS for query in panel.queries]
SPAN = Span(0.0, 600.0, 5.0, "1m")

DECLARED = {
    metric.name: metric
    for metric in (
        *CATALOGUE,
        *dcgm.METRICS,
        *vllm.families(8192),
        *(metric for quantity in engines.QUANTITIES for metric in quantity.metrics),
    )
}
RECORDED = {rule.record for group in pack.recordings(SETTINGS) for rule in group.rules}
UNITS = {"short", "percentunit", "s", "reqps", "bytes", "none"}

every_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.title)
every_document = pytest.mark.parametrize("document", JSON.values(), ids=JSON)
every_panel = pytest.mark.parametrize(
    "panel", [p for _, p in PANELS], ids=[f"{b.title}: {p.title}" for b, p in PANELS]
)


def names_in(expression: str) -> set[str]:
    """Return the metric names that an expression selects."""
    several = re.findall(r'__name__=~"([^"]+)"', expression)
    bare = re.sub(r'"[^"]*"', '""', expression)
    single = re.findall(
        r"\b((?:vllm:|sglang:|kvbench_|pod:|model:)[a-z0-9_:]+|DCGM_[A-Z_]+|up|ALERTS)\b", bare
    )
    return {*single, *(name for names in several for name in names.split("|"))}


def family(name: str):
    """Return what the catalogue says of a name, the parts of a histogram included."""
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    return DECLARED.get(name) or DECLARED.get(plain)


def whose(name: str) -> str:
    """Return the command that serves a metric of ours; nothing for those of pods."""
    if not name.startswith("kvbench_"):
        return ""
    return {"router": "router", "load": "run"}.get(name.split("_")[1], "exporter")


def test_the_six_dashboards_are_there():
    """The one for the wall first."""
    assert [board.title for board in BOARDS] == [
        "Fleet",
        "KV cache",
        "Latency",
        "Routing",
        "Memory and context",
        "Load run",
    ]


@every_panel
def test_a_panel_says_what_it_shows_in_which_unit_and_whose_metrics_it_needs(panel):
    """A title, a sentence, a unit that Grafana has; a part of ours by its command's name."""
    assert panel.title
    assert panel.description.rstrip("`").endswith(".")
    assert panel.unit in UNITS
    assert panel.queries
    assert panel.idle
    read = {name for query in panel.queries for name in names_in(query.expression)}
    commands = {whose(name) for name in read} - {""}
    assert all(f"`kvbench {command}`" in panel.text for command in commands)
    if panel.needs != "pods":
        assert panel.text.endswith(NEEDS[panel.needs])


@pytest.mark.parametrize(
    ("panel", "query"),
    [(panel, query) for _, panel, query in QUERIES],
    ids=[f"{b.title}: {p.title}: {q.legend}" for b, p, q in QUERIES],
)
def test_a_query_reads_only_what_is_declared_and_counters_only_through_rates(panel, query):
    """No name that nobody serves; no counter as it is; a histogram by its parts."""
    expression = query.expression
    names = names_in(expression)
    assert names
    for name in names - {"up", "ALERTS"} - RECORDED:
        metric = family(name)
        assert metric, f"{name} is declared nowhere"
        if metric.kind == "histogram":
            assert re.search(r"_(bucket|sum|count)$", name)
        if metric.kind in {"counter", "histogram"} and panel.title != "Done":
            assert re.search(r"\b(rate|increase|resets)\([^()]*" + re.escape(name), expression)
        if metric.kind == "gauge":
            assert not re.search(r"\brate\([^()]*" + re.escape(name), expression)
    for window in re.findall(r"\b(?:rate|increase)\([^\[]*\[([^\]]+)\]", expression):
        assert window == "$__rate_interval"


def test_the_ceiling_of_a_run_is_a_share_of_the_plans_own_tokens():
    """It is counted in them; a pod whose template adds tokens does not lower it."""
    over = {
        query.legend or panel.title: re.findall(
            r"kvbench_load_(\w+)_tokens_total", query.expression
        )
        for board, panel, query in QUERIES
        if board.title == "Load run" and "ceiling_tokens" in query.expression
    }
    assert over == {
        "Of its ceiling": ["cached", "prompt", "ceiling", "planned_prompt"],
        "ceiling": ["ceiling", "planned_prompt"],
    }


@every_panel
def test_a_panel_of_the_pods_is_narrowed_by_the_variables(panel):
    """Whoever chooses a pod sees that pod."""
    for query in panel.queries:
        for selected in re.findall(r"\{([^{}]*)\}", query.expression):
            if re.search(r"vllm:|sglang:", selected) and "__name__" in selected:
                for variable in ("job", "model", "pod"):
                    assert f'=~"${variable}"' in selected


@pytest.mark.stack
def test_every_expression_is_promql(tmp_path):
    """Prometheus's own parser reads each of them, as a rule's."""
    rules = [
        {"record": f"panel:{number}", "expr": filled(query.expression, SPAN)}
        for number, (_, _, query) in enumerate(QUERIES)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    done = subprocess.run(
        ["promtool", "check", "rules", path], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


@every_board
def test_panels_stand_side_by_side_within_the_grid_and_fill_their_lines(board):
    """No two overlap; no line is wider than 24 columns; titles are unique."""
    assert len({panel.title for panel in board.panels}) == len(board.panels)
    taken = set()
    grid = places(board)
    for place in grid.values():
        cells = {
            (x, y)
            for x in range(place.x, place.x + place.width)
            for y in range(place.y, place.y + place.height)
        }
        assert not cells & taken
        assert place.x + place.width <= 24
        taken |= cells
    assert len(taken) == 24 * max(place.y + place.height for place in grid.values())


@every_board
def test_a_board_is_no_wall_of_graphs(board):
    """What is asked first stands on top: numbers, then a few rows with a heading each."""
    assert all(panel.kind == "stat" for panel in board.rows[0].panels)
    assert len(board.panels) <= 24
    assert all(row.title for row in board.rows[1:])
    assert all(len(row.panels) <= 4 for row in board.rows[1:])


@pytest.mark.parametrize(("name", "document"), JSON.items(), ids=JSON)
def test_a_dashboards_json_is_one_that_grafana_10_4_to_13_import(name, document):
    """Its schema, panel types, numbers and references; nothing of later releases alone."""
    assert document["schemaVersion"] == 39
    assert document["uid"] == "kvbench-" + name.removesuffix(".json")
    assert len(document["uid"]) <= 40
    assert document["id"] is None
    assert "inControlsMenu" not in json.dumps(document)
    panels = document["panels"]
    assert {panel["type"] for panel in panels} <= {
        "stat", "timeseries", "heatmap", "bargauge", "table", "row",
    }  # fmt: skip
    numbers = [panel["id"] for panel in panels]
    assert len(numbers) == len(set(numbers))
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["noValue"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target.get("range", False) != target.get("instant", False)


@every_document
def test_every_variable_is_used_and_every_used_one_is_there(document):
    """And all of them are chosen at first, so that the first look is not empty."""
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    text = json.dumps([document["panels"], document["templating"], document["annotations"]])
    used = set(re.findall(r"\$\{?([a-z]+)\b", text))

    assert set(variables) == used
    for variable in variables.values():
        if variable["type"] == "query":
            assert variable["current"]["value"] == "$__all"
            assert variable["multi"]
            assert variable["includeAll"]


@every_document
def test_the_sdk_reads_a_dashboard_back_as_it_was(document):
    """Its types are Grafana's own schema: nothing is lost or added on the way."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))

    def bare(value):
        """Return it without what is None, and without where the SDK hides links."""
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if v is not None and k != "placement"}
        return [bare(item) for item in value] if isinstance(value, list) else value

    assert bare(again) == bare(document)


@pytest.mark.parametrize("alert", pack.alerts(SETTINGS), ids=lambda alert: alert.name)
def test_an_alert_leads_to_a_panel_that_there_is_and_the_panel_to_its_runbook(alert):
    """From the message to the picture to what to do."""
    name = board_uid(alert.board).removeprefix("kvbench-") + ".json"
    panel = next(p for p in JSON[name]["panels"] if p["id"] == panel_id(alert.panel))

    assert panel["title"] == alert.panel
    assert f"Runbook: {alert.name}" in [link["title"] for link in panel["links"]]
    assert alert.document(SETTINGS)["annotations"]["dashboard_url"].endswith(
        f"/d/{JSON[name]['uid']}?viewPanel={panel['id']}"
    )


def test_a_firing_alert_in_the_table_leads_to_its_runbook():
    """From the page for the wall straight to what to do."""
    table = next(panel for panel in JSON["fleet.json"]["panels"] if panel["title"] == "Alerts")
    (override,) = (
        o for o in table["fieldConfig"]["overrides"] if o["matcher"]["options"] == "Alert"
    )

    assert override["properties"][0]["value"][0]["url"].endswith(
        "/docs/runbooks/${__value.text}.md"
    )


def test_the_committed_files_are_these():
    """A stale one is red; `kvbench generate` mends it."""
    folder = Path(__file__).parents[2] / "dashboards"

    assert {path.name for path in folder.glob("*.json")} == set(JSON)
    assert {path.name: path.read_text() for path in folder.glob("*.json")} == files(SETTINGS)
