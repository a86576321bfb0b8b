"""What kvbench adds to Locust's web UI, without a browser and without Locust."""

import json
from types import SimpleNamespace

import flask
import pytest
from fakes_live import live, row, tally

from kvbench.load.web_ui import attach
from kvbench.records.manifest import Manifest
from kvbench.records.run import RunFolder
from kvbench.records.writer import RowWriter


def browser(folder=None, base_path="", state="cleanup"):
    """Return a client of a page like Locust's, with ours attached to it."""
    app = flask.Flask("stand-in", root_path=".")
    index = "<body><script>window.templateArgs = {}</script></body>"
    app.add_url_rule(f"{base_path}/", "index", lambda: index)
    app.add_url_rule("/other", "other", lambda: "<body></body>")
    app.add_url_rule("/stats/requests", "stats", lambda: flask.jsonify(state=state, user_count=1))
    web = SimpleNamespace(app=app, template_args={}, auth_required_if_enabled=lambda view: view)
    environment = SimpleNamespace(
        web_ui=web, parsed_options=SimpleNamespace(web_base_path=base_path)
    )
    attach(environment, SimpleNamespace(live=live(tally(row())), folder=folder))
    return app.test_client()


def written(tmp_path):
    """Return a run of two workers with a row each."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_manifest(Manifest(name="x"))
    for worker in (0, 1):
        with RowWriter(folder.rows_path(worker)) as writer:
            writer.append(row(index=worker, worker=worker))
    return folder


def test_locusts_page_loads_our_script_and_no_other_page_does():
    """It is what puts the tab's frame in its place."""
    client = browser()

    assert b'<script src="./kvbench/tab.js" defer></script></body>' in client.get("/").data
    assert b"tab.js" not in client.get("/other").data


@pytest.mark.parametrize("base_path", ["", "/load"])
def test_what_is_shown_is_what_the_master_knows(base_path):
    """Below Locust's base path, if it has one."""
    client = browser(base_path=base_path)

    shown = json.loads(client.get(f"{base_path}/kvbench/live.json").data)
    assert (shown["run"], shown["all"]["turns"]) == ("run-1", 1)
    assert b"kvbench_load_running 1.0" in client.get(f"{base_path}/metrics").data
    assert b"<title>kvbench live</title>" in client.get(f"{base_path}/kvbench/").data
    assert b"kvbench-frame" in client.get(f"{base_path}/kvbench/tab.js").data


@pytest.mark.parametrize(
    ("state", "told"), [("cleanup", "running"), ("stopping", "running"), ("stopped", "stopped")]
)
def test_locusts_page_goes_on_asking_until_a_run_has_ended(state, told):
    """It would hang at what it takes for an end."""
    assert browser(state=state).get("/stats/requests").json["state"] == told


def test_rows_of_all_workers_can_be_downloaded(tmp_path):
    """As lines and as a table, named after the run."""
    client = browser(written(tmp_path))

    lines = client.get("/kvbench/rows.jsonl")
    table = client.get("/kvbench/rows.csv").data.decode().splitlines()
    assert [json.loads(line)["worker"] for line in lines.data.splitlines()] == [0, 1]
    assert lines.headers["Content-Disposition"] == 'attachment; filename="run-rows.jsonl"'
    assert (len(table), table[0].split(",")[0]) == (3, "index")
    assert client.get("/kvbench/manifest.json").json["name"] == "x"


@pytest.mark.parametrize("name", ["rows.csv", "verdict.json", "..%2Fmanifest.json"])
def test_where_there_is_no_run_or_no_such_file_it_is_said(name):
    """And nothing else of the disk is served."""
    assert browser().get(f"/kvbench/{name}").status_code == 404
