"""The report in a real Chromium: nothing in its console, nothing fetched, nothing wider than it."""

import shutil
import subprocess

import pytest
from fakes_records import story, written_run
from playwright.sync_api import sync_playwright

from kvbench.gates.grammar import parse_gate
from kvbench.gates.judge import judge
from kvbench.records.evidence import read_evidence
from kvbench.records.verdict import write_verdict
from kvbench.report.page import build_report

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of three arms with verdicts."""
    root = tmp_path_factory.mktemp("browser")
    folders = [written_run(root, story(arm), name=arm) for arm in ("prefix", "random", "sticky")]
    for folder in folders:
        gates = [parse_gate(text) for text in ("ttft p95 < 300ms", "hit_rate > 0.9 of ceiling")]
        write_verdict(folder, judge(read_evidence(folder), gates))
    return build_report([folder.path for folder in folders], root / "report.html")


def _chromium(page, *flags):
    """Open the page without a window; return what Chromium prints."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update",
        "--no-first-run", f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr",
        *flags, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return done.stdout, done.stderr


@pytest.mark.parametrize("size", ["390,844", "1280,900"], ids=["phone", "desktop"])
def test_the_page_opens_without_a_word_in_the_console(page, size, tmp_path):
    """On a phone and on a desk. Its policy forbids to fetch, and a try would be a word."""
    shot = tmp_path / "shot.png"
    _, said = _chromium(page, f"--window-size={size}", f"--screenshot={shot}")
    assert "CONSOLE" not in said
    assert shot.stat().st_size > 20_000


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1000, 2), (1280, 2)])
def test_the_page_fits_its_width(page, width, columns):
    """Nothing is cut off but tables that scroll; charts stand side by side where there is room."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.goto(page.as_uri())
        wide = tab.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide table') || "
            "e.closest('.summary')).filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        tops = tab.evaluate(
            "[...document.querySelectorAll('figure')].map(e => e.getBoundingClientRect().top)"
        )
        browser.close()
    assert wide == []
    assert tops.count(tops[0]) == columns


def test_a_page_that_fetches_would_be_seen(page, tmp_path):
    """The same page with a picture from outside: so the test above can fail."""
    evil = tmp_path / "evil.html"
    picture = '<main><img src="http://127.0.0.1:9/x.png">'
    evil.write_text(page.read_text().replace("<main>", picture))
    _, said = _chromium(evil, "--window-size=1280,900", f"--screenshot={tmp_path / 'shot.png'}")
    assert "Content Security Policy" in said


def test_the_page_is_whole_as_it_was_written(page):
    """Its markup needs no mending, and there is no script to change it."""
    document, _ = _chromium(page, "--dump-dom")
    assert document.count("<figure") == page.read_text().count("<figure") >= 8
    assert "<script" not in document
