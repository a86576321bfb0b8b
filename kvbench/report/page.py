"""The report: one HTML file that explains a run, or compares several.

- Self-contained: style and charts are inside, nothing is fetched, there is no script. A content
  security policy says so to the browser as well.
- Whatever comes from files (names, pods, error messages) is escaped; only our own SVG is not.
- What may not be believed is said before any number.
- The same runs give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvbench import __version__
from kvbench.errors import InputError
from kvbench.records.run import RunFolder
from kvbench.records.validity import Limits
from kvbench.report import words
from kvbench.report.believed import sentence
from kvbench.report.canvas import ARMS, line_style
from kvbench.report.charts import charts
from kvbench.report.generator import generator
from kvbench.report.numbers import cards, judgement
from kvbench.report.table import COLUMNS
from kvbench.report.view import SLOWEST, name_arms, view_run
from kvbench.text.degeneration import KINDS
from kvbench.units import format_number, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kvbench.records.manifest import Manifest
    from kvbench.report.view import RunView

    Arms = Mapping[str, RunView]

_LIMITS = Limits()


def build_report(folders: Sequence[Path], out: Path, limits: Limits = _LIMITS) -> Path:
    """Write the report of one run, or of several side by side.

    Args:
        folders: Run folders, in the order in which their arms shall stand.
        out: The HTML file; replaced if it is there.
        limits: What a measurement must keep to be called valid.

    Returns:
        `out`.

    Raises:
        InputError: A folder is no run, its files cannot be read, or `out` cannot be written.
    """
    if not folders:
        raise InputError("expected at least one run folder", hint="kvbench report runs/<id>")
    arms = name_arms([view_run(RunFolder.open(folder), limits) for folder in folders])
    page = render_page(arms, limits)
    beside = out.with_name(f".{out.name}.tmp")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            f"cannot write the report: {error.strerror or error}",
            where=str(out),
            hint="choose another file with --out",
        ) from error
    return out


def default_path(folders: Sequence[Path]) -> Path:
    """Return where the report of these runs belongs if nobody says otherwise.

    In the folder of a single run; for several beside the first, named for all of them.
    """
    if len(folders) == 1:
        return folders[0] / "report.html"
    name = "-".join(["report", *(folder.resolve().name for folder in folders)])
    return folders[0].parent / f"{name[:200]}.html"


def render_page(arms: Arms, limits: Limits = _LIMITS) -> str:
    """Return the page for these arms."""
    environment = Environment(
        loader=PackageLoader("kvbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = _sentence
    return environment.get_template("page.html.jinja").render(
        title=_title(arms),
        facts=_facts(arms),
        judgement=judgement(arms, words.checked(arms, limits)),
        cards=cards(arms),
        columns=COLUMNS,
        rows=[_row(number, arm, view) for number, (arm, view) in enumerate(arms.items())],
        headline=words.headline(arms),
        several=len(arms) > 1,
        swatches=[_Swatch.of(number, arm) for number, arm in enumerate(arms)],
        charts=[(chart, Markup(chart.svg)) for chart in charts(arms, limits.lateness_p99_s)],  # noqa: S704 - our own drawing
        gates=[
            (arm, result)
            for arm, view in arms.items()
            if view.verdict is not None
            for result in view.verdict.gates
        ],
        failures=[(arm, view.failures) for arm, view in arms.items() if view.failures],
        answers=[(arm, line) for arm, view in arms.items() for line in view.answers],
        kinds=KINDS,
        slowest=_slowest(arms),
        runs=[(arm, _run_facts(view)) for arm, view in arms.items()],
        version=__version__,
    )


@dataclass(frozen=True, slots=True)
class _Swatch:
    """How an arm is marked in legends."""

    arm: str
    style: str
    colour: str

    @classmethod
    def of(cls, number: int, arm: str) -> _Swatch:
        colour = f"var(--arm-{number % ARMS})"
        return cls(arm, f"border-top: 3px {line_style(number)} {colour}", colour)


@dataclass(frozen=True, slots=True)
class _Row:
    """One arm's line of the first table; shares from 0 to 100, None if unknown."""

    swatch: _Swatch
    valid: bool
    cells: tuple[str, ...]
    hit_rate: float | None
    ceiling: float | None


def _row(number: int, arm: str, view: RunView) -> _Row:
    rate, ceiling = view.summary.hits.rate, view.summary.hits.ceiling
    return _Row(
        swatch=_Swatch.of(number, arm),
        valid=not view.reasons,
        cells=tuple(column.cell(view.summary) for column in COLUMNS),
        hit_rate=None if rate is None else round(100 * rate, 1),
        ceiling=None if ceiling is None else round(100 * ceiling, 1),
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _title(arms: Arms) -> str:
    return _each(view.manifest.name or view.summary.run for view in arms.values()) or "run"


def _facts(arms: Arms) -> list[tuple[str, str]]:
    """Return what was run, for the head of the page; arms that agree say it once."""
    manifests = [view.manifest for view in arms.values()]
    facts = [
        ("Arms", ", ".join(arms)),
        ("Workload", _each(m.workload.file or m.workload.trace for m in manifests)),
        ("Target", _each(m.target for m in manifests)),
        ("Model", _each(m.model for m in manifests)),
        ("When", _when(manifests)),
        ("Seed", _each(None if m.seed is None else str(m.seed) for m in manifests)),
    ]
    return [(name, value) for name, value in facts if value]


def _each(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _when(manifests: Sequence[Manifest]) -> str:
    moments = sorted(m.started_at or m.created or "" for m in manifests)
    known = [_moment(moment) for moment in moments if moment]
    ends = dict.fromkeys([known[0], known[-1]] if known else [])
    return " to ".join(ends)


def _moment(iso: str) -> str:
    """Return an ISO moment for people; what is none, as it is."""
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M} UTC"


def _slowest(arms: Arms) -> list[list[str]]:
    """Return the slowest answered turns of all arms as cells, slowest first."""
    turns = [(turn, arm) for arm, view in arms.items() for turn in view.slowest]
    turns.sort(key=lambda pair: -pair[0].ttft_s)
    return [
        [
            format_seconds(turn.ttft_s),
            arm,
            f"{turn.session}, turn {turn.turn}",
            f"{turn.at_s:.1f} s",
            turn.pod or "–",
            _joined(turn.policy, turn.reason),
            format_number(turn.prompt_tokens),
            format_number(turn.cached_tokens),
            format_number(turn.predicted_tokens),
            turn.cause or "–",
            "–" if turn.regret_s is None else format_seconds(turn.regret_s),
        ]
        for turn, arm in turns[:SLOWEST]
    ]


def _joined(policy: str | None, reason: str | None) -> str:
    return ": ".join(filter(None, (policy, reason))) or "–"


def _run_facts(view: RunView) -> list[tuple[str, str]]:
    """Return everything that one needs to run it again, and what the pods said themselves."""
    manifest, summary = view.manifest, view.summary
    workload, machine = manifest.workload, manifest.machine
    facts = [
        ("Run", summary.run),
        ("State", manifest.state),
        ("Command", " ".join(manifest.command)),
        ("Started", _moment(manifest.started_at or "")),
        ("Ended", _moment(manifest.ended_at or "")),
        ("Target", manifest.target),
        ("Model", _with(manifest.model, manifest.tokenizer, "tokenizer")),
        ("Workload", _with(workload.file or workload.trace, workload.sha256, "sha256")),
        ("Trace speed", None if workload.speed is None else f"{workload.speed:g}×"),
        ("Trace limit", None if workload.limit is None else format_number(workload.limit)),
        ("Sent as", _each([manifest.api, _said("history", manifest.history)])),
        ("Isolation", manifest.isolation),
        ("Block size", _said("tokens", manifest.block_size, after=True)),
        ("Planned", _planned(manifest)),
        ("Ceiling of the plan", _ceiling(manifest)),
        ("Predictions", _begun(sentence(view.believed))),
        ("Hit rate by the pods’ counters", _share(summary.server_hit_rate)),
        ("TTFT from when it was due", _three(view, "ttft_intended")),
        ("Time per output token", _three(view, "tpot")),
        ("Gap between chunks", _three(view, "chunk_gap")),
        ("Whole answer", _three(view, "e2e")),
        ("Load generator", generator(manifest)),
        ("Machine", _each([machine.platform, _said("CPUs", machine.cpus, after=True),
                           _said("Python", machine.python)]) if machine else None),
        ("kvbench", manifest.kvbench_version),
    ]  # fmt: skip
    return [(name, value) for name, value in facts if value]


def _with(value: str | None, extra: str | None, name: str) -> str | None:
    return f"{value} ({name} {extra})" if value and extra else value


def _said(name: str, value: str | int | None, *, after: bool = False) -> str | None:
    if value is None:
        return None
    return f"{value} {name}" if after else f"{name} {value}"


def _planned(manifest: Manifest) -> str | None:
    if manifest.planned_turns is None:
        return None
    sessions = manifest.planned_sessions
    turns = f"{format_number(manifest.planned_turns)} turns"
    return turns if sessions is None else f"{turns} in {format_number(sessions)} sessions"


def _ceiling(manifest: Manifest) -> str | None:
    plan, ids = manifest.ceiling, manifest.ids_ceiling
    said = [
        None if plan is None else format_share(plan.hit_rate),
        None if ids is None else f"{format_share(ids.hit_rate)} by the trace’s block ids",
    ]
    return _each(said) or None


def _begun(text: str) -> str:
    """Return a sentence as it begins where it stands alone, without its full stop."""
    return _sentence(text).removesuffix(".")


def _share(value: float | None) -> str | None:
    return None if value is None else format_share(value)


def _three(view: RunView, name: str) -> str | None:
    latency = getattr(view.summary, name)
    if not latency.count:
        return None
    parts = [(latency.p50, "p50"), (latency.p95, "p95"), (latency.p99, "p99")]
    return ", ".join(f"{label} {format_seconds(seconds)}" for seconds, label in parts)
