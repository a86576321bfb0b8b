"""Boards as Grafana's classic dashboard JSON, which Grafana 10.4 to 13 import.

The SDK writes for its newest Grafana; what an older one would not know is taken out again
(`_portable`). Numbers of panels follow from their titles, so links survive that panels move. The
same board gives the same bytes.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, TypeAlias

from kvbench.alerts.rule import board_uid
from kvbench.dashboards.panel import BLUE, Board, Panel, Place, Query, places
from kvbench.metrics import engines, load
from kvbench.metrics.promql import panel_id, resets, selector

with warnings.catch_warnings():
    # it recommends, at its import, a schema that Grafana calls experimental
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, table, timeseries
    from grafana_foundation_sdk.builders import dashboard as build
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common as words
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvbench.dashboards.panel import Kind
    from kvbench.metrics.promql import Series

SCHEMA_VERSION = 39
"""Grafana 10.4's: later ones migrate what they read, earlier ones do not know later ones."""

SOURCE = words.DataSourceRef(type_val="prometheus", uid="${datasource}")

Drawn: TypeAlias = stat.Panel | timeseries.Panel | heatmap.Panel | bargauge.Panel | table.Panel

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | float | bool | None"


def dashboard(board: Board, runbooks: Mapping[str, tuple[str, ...]], base: str) -> str:
    """Return a dashboard's file.

    Args:
        board: What is on it.
        runbooks: Names of the alerts that lead to a panel, by the panel's title.
        base: URL of the folder of runbook pages.
    """
    built = _frame(board)
    grid = places(board)
    for row in board.rows:
        if row.title:
            heading = build.Row(row.title).id(panel_id(f"# {row.title}"))
            built.with_row(heading.grid_pos(_grid(grid[f"# {row.title}"])))
        for panel in row.panels:
            drawn = _panel(panel, grid[panel.title])
            drawn.links(
                [
                    build.DashboardLink(f"Runbook: {alert}")
                    .type(model.DashboardLinkType.LINK)
                    .url(f"{base}/{alert}.md")
                    .target_blank(True)
                    for alert in runbooks.get(panel.title, ())
                ]
            )
            built.with_panel(drawn)
    document: JSON = json.loads(JSONEncoder(sort_keys=True).encode(built.build()))
    assert isinstance(document, dict)
    return json.dumps(_portable(document), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _portable(document: dict[str, JSON]) -> dict[str, JSON]:
    """Return what Grafana 10.4 knows too: links stay visible, the schema is its own."""

    def without(value: JSON) -> JSON:
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items() if k != "placement" or v != MENU}
        return [without(item) for item in value] if isinstance(value, list) else value

    cleaned = without(document)
    assert isinstance(cleaned, dict)
    return cleaned | {"schemaVersion": SCHEMA_VERSION, "version": 1, "id": None}


MENU = "inControlsMenu"
"""Where the SDK hides links and annotations, in Grafana 12.2 and later."""


def _frame(board: Board) -> build.Dashboard:
    """Return a dashboard with everything but its panels."""
    frame = (
        build.Dashboard(f"kvbench / {board.title}")
        .uid(board_uid(board.title))
        .description(board.description)
        .tags(["kvbench", "kv-cache"])
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(
            build.DashboardLink("kvbench")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["kvbench"])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(
            build.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for name in board.variables:
        frame.with_variable(_variable(name))
    for annotation in _annotations(board):
        frame.annotation(annotation)
    return frame


_VARIABLES: dict[str, tuple[str, Series, str, str]] = {
    "job": ("Job", engines.RUNNING, "", "job"),
    "model": ("Model", engines.RUNNING, 'job=~"$job"', "model_name"),
    "pod": ("Pod", engines.RUNNING, 'job=~"$job",model_name=~"$model"', "instance"),
    "run": ("Run", load.RUN, "", "run"),
}


def _variable(name: str) -> build.QueryVariable:
    """Return a variable that offers what there is; all of it is chosen at first."""
    label, what, matchers, value = _VARIABLES[name]
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({selector(what, matchers)}, {value})")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text="All", value="$__all"))
    )


def _annotations(board: Board) -> list[build.AnnotationQuery]:
    """Return what is marked on every time axis: alerts, restarts, and runs where they are."""
    marks = [
        (
            "Alerts",
            'ALERTS{alertname=~"KVBench.+",alertstate="firing",severity!="info"}',
            "red",
            "{{alertname}} {{instance}}{{pod}}",
        )
    ]
    if "job" in board.variables:
        restarts = resets(engines.QUERIES, "2m", 'job=~"$job"')
        marks.append(("Restarts", f"{restarts} > 0", "orange", "{{instance}} began anew"))
    if "run" in board.variables:
        marks.append(("Runs", selector(load.RUN, 'run=~"$run"'), "blue", "{{run}}: {{workload}}"))
    return [
        build.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expression)
        .title_format(title)
        .step("30s")
        for name, expression, colour, title in marks
    ]


def _grid(place: Place) -> model.GridPos:
    """Return a place as Grafana has it."""
    return model.GridPos(x=place.x, y=place.y, w=place.width, h=place.height)


def _panel(panel: Panel, place: Place) -> Drawn:
    """Return a panel: what is common to all kinds, upon what is not."""
    drawn = _KINDS[panel.kind](panel)
    drawn.id(panel_id(panel.title)).title(panel.title).description(panel.text).unit(panel.unit)
    drawn.datasource(SOURCE).grid_pos(_grid(place)).no_value(panel.idle)
    if panel.steps:
        drawn.thresholds(
            build.ThresholdsConfig()
            .mode(model.ThresholdsMode.ABSOLUTE)
            .steps([model.Threshold(value=at, color=colour) for at, colour in panel.steps])
        )
    if panel.least is not None:
        drawn.min(panel.least)
    if panel.most is not None:
        drawn.max(panel.most)
    for number, query in enumerate(panel.queries):
        drawn.with_target(_target(panel, query, chr(ord("A") + number)))
    return drawn


def _target(panel: Panel, query: Query, ref: str) -> Dataquery:
    """Return a query: instant where only the present is shown."""
    target = Dataquery().ref_id(ref).datasource(SOURCE).expr(query.expression)
    target.legend_format(query.legend)
    if panel.kind == "heat":
        target.format(PromQueryFormat.HEATMAP)
    if panel.kind == "table":
        target.format(PromQueryFormat.TABLE)
    return target.instant() if panel.kind in {"table", "bars"} else target.range()


def _latest() -> common.ReduceDataOptions:
    """Return that the latest value is shown."""
    return common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)


def _stat(panel: Panel) -> stat.Panel:
    """Return one number with a shadow of its past."""
    several = len(panel.queries) > 1
    coloured = words.BigValueColorMode.VALUE if panel.steps else words.BigValueColorMode.NONE
    drawn = (
        stat.Panel()
        .reduce_options(_latest())
        .color_mode(coloured)
        .graph_mode(words.BigValueGraphMode.NONE if several else words.BigValueGraphMode.AREA)
        .text_mode(
            words.BigValueTextMode.VALUE_AND_NAME if several else words.BigValueTextMode.VALUE
        )
    )
    return drawn if panel.steps else drawn.color_scheme(_fixed(BLUE))


def _fixed(colour: str) -> build.FieldColor:
    """Return one colour for everything."""
    return build.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color(colour)


def _lines(panel: Panel) -> timeseries.Panel:
    """Return curves, or areas upon each other."""
    stacked = panel.kind == "stack"
    drawn = (
        timeseries.Panel()
        .line_width(1 if stacked else 2)
        .fill_opacity(60 if stacked else 0)
        .show_points(words.VisibilityMode.NEVER)
        .span_nulls(False)
        .tooltip(
            common.VizTooltipOptions()
            .mode(words.TooltipDisplayMode.MULTI)
            .sort(words.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(words.LegendDisplayMode.LIST)
            .placement(words.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
    )
    if stacked:
        drawn.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))
    if panel.log:
        drawn.scale_distribution(
            common.ScaleDistributionConfig().type(words.ScaleDistribution.LOG).log(10)
        )
    for number, query in enumerate(panel.queries):
        if query.colour or query.dashed:
            drawn.override_by_query(chr(ord("A") + number), _look(query))
    return drawn


def _look(query: Query) -> list[model.DynamicConfigValue]:
    """Return how a query's series look."""
    look = []
    if query.colour:
        fixed = {"mode": "fixed", "fixedColor": query.colour}
        look.append(model.DynamicConfigValue(id_val="color", value=fixed))
    if query.dashed:
        dashes = {"fill": "dash", "dash": [8, 6]}
        look.append(model.DynamicConfigValue(id_val="custom.lineStyle", value=dashes))
        look.append(model.DynamicConfigValue(id_val="custom.fillOpacity", value=0))
        stacking = {"mode": "none", "group": "none"}
        look.append(model.DynamicConfigValue(id_val="custom.stacking", value=stacking))
    return look


def _heat(panel: Panel) -> heatmap.Panel:
    """Return a heat map of a histogram's buckets."""
    return (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("YlGnBu")
            .steps(64)
            .reverse(True)
        )
    )


def _bars(panel: Panel) -> bargauge.Panel:
    """Return one bar for each series, as it is now."""
    drawn = (
        bargauge.Panel()
        .reduce_options(_latest())
        .orientation(words.VizOrientation.HORIZONTAL)
        .display_mode(words.BarGaugeDisplayMode.BASIC)
    )
    return drawn if panel.steps else drawn.color_scheme(_fixed(BLUE))


def _table(panel: Panel) -> table.Panel:
    """Return one line for each pod or alert: its labels, and a column for each query."""
    shown = [label for label, _ in panel.labels]
    headings = dict(panel.labels)
    columns = {}
    for number, query in enumerate(panel.queries):
        ref = chr(ord("A") + number)
        name = "Value" if len(panel.queries) == 1 else f"Value #{ref}"
        columns[name] = query
    order = {name: place for place, name in enumerate([*shown, *columns])}
    names = headings | {name: query.legend for name, query in columns.items()}
    drawn = (
        table.Panel()
        .filterable(False)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            model.DataTransformerConfig(
                id_val="filterFieldsByName", options={"include": {"names": [*shown, *columns]}}
            )
        )
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize", options={"indexByName": order, "renameByName": names}
            )
        )
    )
    if panel.link:
        link = {"title": panel.labels[0][1], "url": panel.link, "targetBlank": True}
        linked = model.DynamicConfigValue(id_val="links", value=[link])
        drawn.override_by_name(panel.labels[0][1], [linked])
    for query in columns.values():
        unit = model.DynamicConfigValue(id_val="unit", value=query.unit or panel.unit)
        drawn.override_by_name(query.legend, [unit])
    return drawn


_KINDS: dict[Kind, Callable[[Panel], Drawn]] = {
    "stat": _stat,
    "lines": _lines,
    "stack": _lines,
    "heat": _heat,
    "bars": _bars,
    "table": _table,
}
