import re

import msgspec
import pytest
from fakes_records import NOON, failed_row, replace, row, story, written_run
from pages import Page
from records.test_decisions import entry

from kvbench.errors import InputError
from kvbench.records.manifest import Ceiling, Machine, Manifest, Testimony, Workload
from kvbench.records.run import RunFolder
from kvbench.records.summary import summarise
from kvbench.records.table import to_frame
from kvbench.records.validity import Limits
from kvbench.report import page
from kvbench.report.page import build_report, default_path
from kvbench.report.table import COLUMNS
from kvbench.report.view import name_arms, view_run
from kvbench.units import format_number, format_seconds, format_share

ARMS = ("prefix", "random", "sticky")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>$\\frac{"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three arms of one workload, and the page that compares them."""
    root = tmp_path_factory.mktemp("three")
    folders = [written_run(root, story(arm), name=arm) for arm in ARMS]
    out = build_report([folder.path for folder in folders], root / "report.html")
    return folders, out.read_text()


def _page(tmp_path, rows, **changes) -> Page:
    folder = written_run(tmp_path, rows, **changes)
    return Page(build_report([folder.path], tmp_path / "report.html").read_text())


def test_the_table_holds_the_exact_statistics_of_the_rows(three):
    """Every cell is what the statistics say, arm by arm."""
    folders, source = three
    table = Page(source).tables[0]

    assert table[0] == ["arm", *(column.title for column in COLUMNS)]
    for cells, folder, arm in zip(table[1:], folders, ARMS, strict=True):
        rows = to_frame(story(arm))
        summary = summarise(rows, folder.read_manifest())
        ttft = sorted(rows["ttft_s"])
        known = [r for r in story(arm) if r.cached_tokens is not None]
        rate = sum(r.cached_tokens for r in known) / sum(r.prompt_tokens for r in known)
        ceiling = sum(r.ceiling_tokens for r in known) / sum(r.prompt_tokens for r in known)
        assert cells == [
            arm,
            "240",
            f"{100 * rate:.1f} / {format_share(ceiling)}",
            format_seconds(ttft[120 - 1]),
            format_seconds(ttft[228 - 1]),
            format_seconds(ttft[238 - 1]),
            format_number(summary.output_tokens / summary.wall_s),
            f"{100 * max(pod.turns for pod in summary.pods) / 240:.0f} % of 4",
            "0",
            "–",  # answers of four tokens are too short to be judged
            format_seconds(sorted(rows["lateness_s"])[238 - 1]),
        ]


def test_the_page_needs_nothing_from_outside_and_runs_nothing(three):
    """No script, no reference except into itself, and a policy that forbids both."""
    shown = Page(three[1])

    assert not {"script", "link", "iframe", "object", "embed", "img", "image", "base"} & set(
        shown.tags
    )
    for tag, name, value in shown.attributes:
        assert not name.startswith("on"), f"{tag} {name}"
        if name in {"href", "xlink:href", "src", "srcset", "action", "data"}:
            assert value.startswith("#"), f"{tag} {name}={value}"
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", three[1]))
    assert "@import" not in three[1]
    assert re.findall(r"https?://[^<\s\"]*", three[1]) == ["http://127.0.0.1:8000"] * 4
    policy = [v for tag, name, v in shown.attributes if (tag, name) == ("meta", "content")][-1]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_ids_are_unique_and_every_reference_has_its_target(three):
    """Seven drawings in one page must not borrow each other's clip paths."""
    shown = Page(three[1])
    ids = [value for _, name, value in shown.attributes if name == "id"]
    wanted = set(re.findall(r"url\(#([^)]*)\)", three[1])) | {
        value[1:] for _, name, value in shown.attributes if name == "href"
    }

    assert len(ids) == len(set(ids))
    assert wanted
    assert wanted <= set(ids)


def test_the_same_runs_give_the_same_bytes(three, tmp_path):
    """No date, no chance, no memory address."""
    folders, source = three
    again = build_report([folder.path for folder in folders], tmp_path / "again.html")

    assert again.read_text() == source


def test_charts_follow_the_readers_theme(three):
    """No colour is fixed in a drawing: light, dark and paper choose their own."""
    drawings = re.findall(r"<svg.*?</svg>", three[1], flags=re.DOTALL)

    assert len(drawings) == 11
    for drawing in drawings:
        assert not re.search(r"#[0-9a-fA-F]{6}|rgb\(", drawing)
        assert "var(--arm-2)" in drawing or "Predicted against delivered" in drawing
    assert "prefers-color-scheme: dark" in three[1]
    assert "@media print" in three[1]


def test_what_was_run_stands_at_the_top(three):
    """Workload, arms, target, model and time, before anything else; then the verdict."""
    text = Page(three[1]).text

    assert text.index("Arms prefix, random, sticky") < text.index("Valid")
    assert "Workload workloads/chat.yaml" in text
    assert "Target http://127.0.0.1:8000" in text
    assert "When 2026-11-29 12:00 UTC" in text
    assert "Not valid" not in text
    assert (
        "Valid Turns were sent on time (p99 within 100 ms), every planned turn left its row, no "
        "more was cached than a cold start explains." in text
    )


@pytest.mark.usefixtures("chartless")
def test_an_invalid_run_says_so_in_words_before_any_number(tmp_path):
    """The reason comes first, the arm is flagged in the table, broken lines included."""
    rows = [row(i, sent_s=i + 0.3) for i in range(20)]
    folder = written_run(tmp_path, rows, planned_turns=25)
    with folder.rows_path(0).open("ab") as file:
        file.write(b'{"index": 20, "sess')
    shown = Page(build_report([folder.path], tmp_path / "report.html").read_text())

    assert shown.text.index("Not valid") < shown.text.index("hit / ceiling")
    assert "20 rows for 25 planned turns" in shown.text
    assert "1 broken line was skipped, the first at rows-0.jsonl:21" in shown.text
    assert "the load generator was late: p99 of 300 ms, limit 100 ms" in shown.text
    assert shown.tables[0][1][0] == "prefix not valid"


def test_failed_turns_are_counted_shown_by_kind_and_make_percentiles_infinite(tmp_path):
    """Neither dropped nor 0, with one message as an example."""
    rows = [row(i) for i in range(8)] + [
        failed_row(8, "http", status=503, error_message="503 no pod"),
        failed_row(9, "http", status=503, error_message="503 no pod"),
    ]
    shown = _page(tmp_path, rows)

    cells = dict(zip(shown.tables[0][0], shown.tables[0][1], strict=True))
    assert (cells["TTFT p50"], cells["TTFT p95"], cells["failed"]) == ("200 ms", "∞", "2")
    assert shown.tables[1][1] == ["prefix", "http", "2", "503 no pod"]
    assert "2 of 10 turns failed and count as never answered." in shown.text


def test_unknown_cached_tokens_are_said_to_be_unknown(tmp_path):
    """No server said anything: no rate, no 0 %."""
    shown = _page(tmp_path, [row(i, cached_tokens=None) for i in range(20)])
    cells = dict(zip(shown.tables[0][0], shown.tables[0][1], strict=True))

    assert cells["hit / ceiling"] == "unknown"
    assert "Hit rate over time" not in shown.text
    assert "Time to first token" in shown.text


def test_partly_unknown_cached_tokens_are_counted_beside_the_rate(tmp_path):
    """The rate is of the turns that are known, and the page says how many are not."""
    rows = [row(i, cached_tokens=None if i % 4 == 0 else 512) for i in range(40)]
    shown = _page(tmp_path, rows)

    assert shown.tables[0][1][2] == "51.2 / 76.8 %"
    assert "For 10 of 40 turns it is unknown what was cached." in shown.text


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([], id="no rows"),
        pytest.param([failed_row(i, "connect") for i in range(30)], id="all failed"),
        pytest.param([failed_row(i, "not_sent", sent_s=None) for i in range(30)], id="none sent"),
        pytest.param([row(0)], id="one turn"),
        pytest.param([row(i, pod=None, policy=None, ceiling_tokens=None) for i in range(9)],
                     id="no pods, no ceiling"),
        pytest.param([row(i, turn=i + 1) for i in range(60)], id="sixty turns"),
        pytest.param([row(i, prompt_tokens=0, cached_tokens=0) for i in range(9)], id="no tokens"),
    ],
)  # fmt: skip
def test_a_run_at_the_edge_still_makes_a_page(tmp_path, rows):
    """Well-formed, with its table, whatever is missing."""
    shown = _page(tmp_path, rows)

    assert shown.tables[0][1][1] == str(len(rows))
    assert "nan" not in shown.text.lower().replace("finance", "")


@pytest.mark.usefixtures("chartless")
def test_a_manifest_that_says_nothing_still_makes_a_page(tmp_path):
    """The arm is called by its policy; facts that are unknown are not shown."""
    folder = written_run(tmp_path, story(sessions=5))
    folder.write_manifest(Manifest())
    shown = Page(build_report([folder.path], tmp_path / "report.html").read_text())

    assert shown.tables[0][1][0] == "prefix not valid"
    assert "None" not in shown.text
    assert "Workload" not in shown.text


@pytest.mark.usefixtures("chartless")
def test_a_manifest_that_says_everything_is_shown(tmp_path):
    """What one needs to run it again, and what the generator says against itself."""
    rows = story(sessions=5)
    shown = _page(
        tmp_path,
        rows,
        tokenizer="tok",
        workload=Workload(trace="t.jsonl", sha256="ff", speed=2.5, limit=1000),
        ids_ceiling=Ceiling(tokens=4, prompt_tokens=10),
        machine=Machine(cpus=4, platform="Linux", python="3.12"),
        load=[
            Testimony(cpu_share=0.5, loop_delay_p99_s=0.004),
            Testimony(worker=1, cpu_share=0.25),
        ],
    )
    rate = format_share(sum(r.cached_tokens for r in rows) / sum(r.prompt_tokens for r in rows))

    for said in (
        "Command kvbench run workloads/chat.yaml",
        "Model qwen3-8b (tokenizer tok)",
        "Workload t.jsonl (sha256 ff)",
        "Trace speed 2.5×",
        "Trace limit 1,000",
        "Sent as chat, history planned",
        "Planned 30 turns in 5 sessions",
        "40.0 % by the trace’s block ids",
        f"Hit rate by the pods’ counters {rate}",
        "Load generator 2 workers, at most 50.0 % of a core, timers late by 4 ms at p99",
        "Machine Linux, 4 CPUs, Python 3.12",
    ):
        assert said in shown.text


def test_names_from_files_are_text_and_never_markup(tmp_path):
    """Arm, session, pod, policy, error and manifest may hold anything."""
    rows = [
        *(row(i, session=EVIL, pod=EVIL, policy=EVIL, group=EVIL) for i in range(10)),
        failed_row(10, error_message=EVIL, pod=EVIL + "\x00\x1b[31m\u202e漢"),
    ]
    changes = dict.fromkeys(["arm", "target", "model", "kvbench_version", "started_at"], EVIL)
    folder = written_run(tmp_path, rows, name=EVIL, command=[EVIL], validity=[EVIL], **changes)
    source = build_report([folder.path], tmp_path / "report.html").read_text()
    shown = Page(source)

    assert "script" not in shown.tags
    assert "img" not in shown.tags
    assert "<script" not in source
    assert shown.text.count("<script>alert(1)</script>") > 10


def test_more_arms_than_colours_are_still_drawn(tmp_path):
    """The eighth arm takes the first colour again, dashed."""
    paths = [written_run(tmp_path, story(sessions=4), arm=f"arm {i}").path for i in range(9)]
    shown = Page(build_report(paths, tmp_path / "report.html").read_text())
    styles = [value for tag, name, value in shown.attributes if (tag, name) == ("i", "style")]

    assert "border-top: 3px dashed var(--arm-0)" in styles
    assert "border-top: 3px solid var(--arm-6)" in styles


@pytest.mark.usefixtures("chartless")
def test_the_slowest_turns_are_listed_slowest_first(tmp_path):
    """With what would explain them: pod, prompt, cached, predicted."""
    rows = [row(i, session=f"s{i}", first_token_s=i + 0.1 * (i + 1)) for i in range(12)]
    rows[5] = replace(rows[5], first_token_s=9.0, pod=None, predicted_tokens=None)
    shown = _page(tmp_path, rows)
    slowest = shown.tables[1]

    assert len(slowest) == 1 + 10
    assert slowest[1] == [
        "4 s",
        "prefix",
        "s5, turn 1",
        "5.0 s",
        "–",
        "prefix",
        "1,000",
        "512",
        "–",
        "–",
        "–",
    ]
    assert [cells[2] for cells in slowest[2:4]] == ["s11, turn 1", "s10, turn 1"]


@pytest.mark.usefixtures("chartless")
def test_a_slow_turn_is_shown_with_what_was_decided_on_it(tmp_path):
    """Why its pod was chosen, and what another would have saved."""
    rows = [row(i, request_id=f"r{i}", first_token_s=i + 0.1 * (i + 1)) for i in range(2)]
    folder = written_run(tmp_path, rows)
    decided = msgspec.structs.replace(entry("r1"), reason="load", cause="evicted", regret_s=0.25)
    folder.decisions_path.write_bytes(msgspec.json.encode(decided))
    slowest = Page(build_report([folder.path], tmp_path / "report.html").read_text()).tables[1]
    assert (slowest[1][5], *slowest[1][9:]) == ("prefix: load", "evicted", "250 ms")
    assert (slowest[2][5], *slowest[2][9:]) == ("prefix", "–", "–")


def test_a_report_of_nothing_or_of_no_run_is_an_input_error(tmp_path):
    """Say what was expected; leave nothing half-written."""
    with pytest.raises(InputError, match="expected at least one run folder"):
        build_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="got nothing there"):
        build_report([tmp_path / "gone"], tmp_path / "report.html")
    folder = written_run(tmp_path, [row()])
    with pytest.raises(InputError, match="cannot write the report: No such file or directory"):
        build_report([folder.path], tmp_path / "gone" / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == [folder.id]


def test_a_report_belongs_into_its_run_and_a_comparison_beside_its_first(tmp_path):
    """Where it is written unless somebody says otherwise."""
    one, two = (RunFolder.create(tmp_path, name, NOON) for name in ("a", "b"))

    assert default_path([one.path]) == one.path / "report.html"
    assert default_path([one.path, two.path]) == tmp_path / f"report-{one.id}-{two.id}.html"


@pytest.mark.usefixtures("chartless")
def test_manifests_that_disagree_are_listed_side_by_side(tmp_path):
    """Two targets, one workload: both targets are named, the workload once."""
    views = [
        view_run(
            written_run(
                tmp_path,
                story(sessions=3),
                target=f"http://pod-{i}",
                started_at=f"2026-11-2{i}T10:00:00Z",
            ),
            Limits(),
        )
        for i in (1, 2)
    ]

    assert page._facts(name_arms(views)) == [
        ("Arms", "prefix, prefix (2)"),
        ("Workload", "workloads/chat.yaml"),
        ("Target", "http://pod-1, http://pod-2"),
        ("Model", "qwen3-8b"),
        ("When", "2026-11-21 10:00 UTC to 2026-11-22 10:00 UTC"),
        ("Seed", "1"),
    ]


@pytest.mark.usefixtures("chartless")
def test_answers_that_are_none_have_a_table_by_the_share_of_the_window(tmp_path):
    """Where there are some; else there is no such section."""
    long = {"completion_tokens": 40, "max_tokens": 40, "context_ratio": 0.95}
    ill = [row(0, **long), row(1, **long, degeneration="loop")]
    folder = written_run(tmp_path, ill, arm="ill")
    page = build_report([folder.path], tmp_path / "ill.html").read_text()

    assert "Answers that are none" in page
    assert "<td>90-100</td>" in page
    assert "50.0 %" in page
