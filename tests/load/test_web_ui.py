"""Locust's web UI in a real Chromium: a run from the form to the download."""

import csv
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import fakes_target
import pytest

from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.timeout(180),
    # Playwright's own event loop is closed by its process's end, not by us.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
LOCUSTFILE = Path(__file__).parents[2] / "workloads" / "locustfile.py"
WORKLOAD = """
name: shown
prefixes: [{name: tenant, count: 2, tokens: 32}]
sessions: {count: 900, turns: 3, user_tokens: 8, answer_tokens: 4, think: 0.1}
arrival: {constant: {rate: 30}}
"""


DRAWN = """() => {
  const paths = document.querySelector("#kvbench-frame").contentDocument
    .querySelectorAll("figure svg path");
  return paths.length === 10 &&
    [...paths].every((path) => path.getAttribute("d").split("L").length > 2);
}"""
"""Whether each of the ten lines of the charts goes over at least three points."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one workload in it, which the form offers."""
    root = tmp_path_factory.mktemp("web")
    (root / "workloads").mkdir()
    (root / "workloads" / "shown.yaml").write_text(WORKLOAD)
    return root


@pytest.fixture(scope="module")
def target():
    """Return the URL of a server in a process of its own that answers in 40 ms."""
    with subprocess.Popen(
        [sys.executable, fakes_target.__file__, "0.01"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        yield server.stdout.readline().split()[1]
        server.communicate()


@pytest.fixture(scope="module")
def locust(folder, target):
    """Return the URL of Locust's web UI, started as people start it."""
    command = [
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", target,
        "--web-host", "127.0.0.1", "--web-port", "0", "--metrics-port", "0",
    ]  # fmt: skip
    command[command.index("--web-port") + 1] = str(free_port())
    with (folder / "locust.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stderr=log)
        url = f"http://127.0.0.1:{command[command.index('--web-port') + 1]}"
        wait_for(url, process)
        yield url
        process.terminate()
        code = process.wait(30)
        process.stdin.close()
        assert code in {0, 2}  # 2 where the last start was the user's mistake


def free_port():
    """Return a port that nobody listens at: Locust does not say which one it took."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def wait_for(url, process):
    """Wait until a server answers."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise AssertionError("Locust ended before it served its page")


@pytest.fixture
def page(locust):
    """Return Locust's page in a browser, and see that nothing is said in its console."""
    from playwright.sync_api import sync_playwright

    said = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(locust)
        yield opened
        browser.close()
    assert said == []


def open_form(page):
    """Go to the start form, also where a run has been before."""
    form, button = page.locator("select[name=workload]"), page.get_by_role("button", name="New")
    form.or_(button).first.wait_for(timeout=30_000)
    if button.count():
        button.click()
    form.wait_for(timeout=10_000)


def test_a_run_is_started_from_the_form_watched_stopped_and_downloaded(page, locust, folder):
    """The numbers move, the charts are drawn, and the download is the rows on disk."""
    open_form(page)
    assert page.locator("input[name=userCount]").is_hidden()
    page.select_option("select[name=workload]", "workloads/shown.yaml")
    page.fill("input[name=runName]", "by hand")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("tab", name="kvbench").click()
    frame = page.frame_locator("#kvbench-frame")
    filed = frame.locator(".tile b").first

    first = turns_above(page, filed, 0)
    turns_above(page, filed, first + 30)

    assert frame.locator("#state").inner_text() == "running"
    assert "ceiling" in frame.locator(".tile").nth(1).inner_text()
    assert frame.locator("#turns tbody tr").count() >= 3
    assert frame.locator("#pods tbody tr").count() == 1
    page.wait_for_function(DRAWN, timeout=30_000)
    with urllib.request.urlopen(f"{locust}/metrics", timeout=5) as answer:
        told = answer.read().decode()
    assert 'kvbench_load_run_info{run="' in told
    assert 'kvbench_load_turns_total{outcome="ok"}' in told
    page.screenshot(path=folder / "running.png", full_page=True)

    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="New").wait_for(timeout=30_000)
    page.get_by_role("tab", name="Download").click()
    with page.expect_download() as waiting:
        page.get_by_text("Download kvbench rows.csv").click()
    (run,) = (folder / "runs").iterdir()
    rows, damage = read_rows(RunFolder(run))
    assert damage.sentences() == []
    assert [row.index for row in rows] == list(range(2700))
    with Path(waiting.value.path()).open() as file:
        downloaded = list(csv.DictReader(file))
    assert len(downloaded) == 2700
    assert waiting.value.suggested_filename == f"{run.name}-rows.csv"
    assert RunFolder(run).read_manifest().state == "interrupted"


def turns_above(page, tile, least):
    """Wait until a tile says more than `least` turns; return how many."""
    for _ in range(200):
        text = tile.inner_text().partition("/")[0].strip().replace(",", "")
        if text.isdecimal() and int(text) > least:
            return int(text)
        page.wait_for_timeout(100)
    raise AssertionError(f"never more than {least} turns")


def test_a_start_that_fails_says_why_in_the_tab(page):
    """In the sentence that the command line would print, and another run can be started."""
    open_form(page)
    page.select_option("select[name=workload]", "")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("tab", name="kvbench").click()
    said = page.frame_locator("#kvbench-frame").locator("#message")
    said.wait_for(timeout=20_000)
    assert said.inner_text() == "expected one of --workload and --trace, got none"
