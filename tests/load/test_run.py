"""A share of a run, from workload file to rows, against a server that does as it is told."""

import asyncio
import collections
import resource
import time
from datetime import timedelta

import pytest
import uvloop
from fakes_target import CLOSE, CUT, END, HEAD, MODELS, ScriptedTarget, answer, chunk, event, plain

from kvbench.clock import utc
from kvbench.load.run import LoadRun, Share
from kvbench.load.settings import OPTIONS, Settings
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.seeds import rng
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.load import load_plan

WORKLOAD = """
name: small
seed: 3
prefixes: [{name: tenant, count: 2, tokens: 32}]
sessions: {count: 8, turns: 3, user_tokens: 8, answer_tokens: 4, think: 0.01}
arrival: {constant: {rate: 100}}
"""


@pytest.fixture(scope="module")
def tokenizer():
    """Return our own tokenizer, whose words need be found only once."""
    return Tokenizer.load()


@pytest.fixture(autouse=True)
def _one_tokenizer(tokenizer, monkeypatch):
    """Let all runs of this module share it."""
    monkeypatch.setattr("kvbench.load.preparation.Tokenizer.load", lambda _path: tokenizer)


@pytest.fixture
def workload(tmp_path):
    """Return the path of a workload of 8 sessions of 3 turns."""
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD)
    return path


def settings(url, workload, **options):
    """Return settings with these options, and with others at their defaults."""
    defaults = {option.name: option.default for option in OPTIONS}
    return Settings.parse(url, {**defaults, "workload": str(workload), **options})


def share(tmp_path, worker=0, workers=1, command=("locust",)):
    """Return a share in a folder of its own."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir(exist_ok=True)
    return Share(folder, worker, workers, command)


def play(script, make_run):
    """Play a share against a server; return the run, its result and what was asked."""

    async def main():
        """Serve and play."""
        async with ScriptedTarget(
            lambda a: MODELS if a.head[:3] == b"GET" else script(a)
        ) as server:
            run = make_run(server.url)
            run.go(utc() + timedelta(seconds=0.1))
            thread = asyncio.get_running_loop().run_in_executor(None, run.run)
            return run, await thread, server.asked

    return uvloop.run(main())


def test_every_planned_turn_is_sent_and_has_its_row(workload, tmp_path):
    """With tokens planned and counted, and a manifest of what is sent."""
    part = share(tmp_path)
    run, result, asked = play(
        lambda _: answer(4), lambda url: LoadRun(settings(url, workload), part)
    )
    rows, damage = read_rows(part.folder)
    assert (result.planned, result.rows, result.failed, result.error) == (24, 24, 0, None)
    assert [row.index for row in rows] == list(range(24))
    assert damage.sentences() == []
    assert {row.prompt_tokens for row in rows} == {10}  # as the server has it
    assert rows[0].planned_prompt_tokens == 32 + 8 + 5  # and as the plan has it
    assert rows[0].ceiling_tokens == 0
    assert rows[1].ceiling_tokens == 32
    posted = [one.json for one in asked if one.body]
    assert {one["cache_salt"] for one in posted} == {"run"}
    assert {one["model"] for one in posted} == {"tiny"}
    manifest = run.manifest
    assert (manifest.planned_turns, manifest.model, manifest.block_size) == (24, "tiny", 16)
    assert run.planned == 24
    (said,) = part.folder.read_testimonies()
    assert (said.turns, said.worker) == (24, 0)


def test_what_is_shown_is_what_was_written(workload, tmp_path):
    """The outbox has the rows, in the order in which they were filed."""
    part = share(tmp_path)
    run, _, _ = play(lambda _: answer(2), lambda url: LoadRun(settings(url, workload), part))
    rows, _ = read_rows(part.folder)
    assert sorted(row.index for row in run.outbox) == [row.index for row in rows]


def test_a_worker_that_is_not_asked_for_a_manifest_makes_none(workload, tmp_path):
    """There is one for all, and the first worker makes it."""
    part = share(tmp_path, command=None)
    run, _, _ = play(lambda _: answer(2), lambda url: LoadRun(settings(url, workload), part))
    assert run.manifest is None
    assert not part.folder.manifest_path.exists()


def test_workers_take_their_parts_without_asking_each_other(workload, tmp_path):
    """Together they send the plan."""
    for worker in range(3):
        part = share(tmp_path, worker, 3)
        play(lambda _: answer(1), lambda url, p=part: LoadRun(settings(url, workload), p))
    rows, damage = read_rows(RunFolder(tmp_path / "run"))
    assert [row.index for row in rows] == [turn.index for turn in load_plan(workload, None).turns]
    assert damage.sentences() == []
    assert {row.worker for row in rows} == {0, 1, 2}


FAULTS = {
    "ok": answer(2),
    "cut": [HEAD, CUT],
    "short": [HEAD, chunk(event({"choices": []})), END],
    "closed": [CLOSE],
    "error": [HEAD, chunk(event({"error": {"message": "no"}})), END],
    "500": plain(500, b"no"),
    "429": plain(429, b"{}"),
    "garbage": [b"\x00\x01\x02\r\n\r\n"],
    "json": plain(200, b"{}"),
    "hang": [HEAD, 5.0],
}


def test_every_turn_has_exactly_one_row_whatever_the_server_does(workload, tmp_path):
    """Sessions go on after failures, and every failure has a kind and a sentence."""
    part = share(tmp_path)
    chance = rng(0, "faults")
    kinds = [*FAULTS] * 2

    def script(_asked):
        return FAULTS[chance.choice(kinds)]

    def make(url):
        return LoadRun(settings(url, workload, request_timeout="250ms"), part)

    _, result, _ = play(script, make)
    rows, damage = read_rows(part.folder)
    assert [row.index for row in rows] == list(range(24))
    assert damage.sentences() == []
    assert (result.error, result.rows) == (None, 24)
    assert result.failed == sum(not row.ok for row in rows)
    assert all(row.error_message for row in rows if not row.ok)
    assert {row.error for row in rows} <= {None, "cut", "server", "http", "protocol", "timeout"}
    assert len(collections.Counter(row.error for row in rows)) >= 4


def test_real_answers_are_repeated_if_the_workload_wants_them(workload, tmp_path):
    """Word for word, as the server gave them."""
    workload.write_text(WORKLOAD + "history: answers\n")
    _, _, asked = play(
        lambda _: answer(3), lambda url: LoadRun(settings(url, workload), share(tmp_path))
    )
    said = [m["content"] for one in asked if one.body for m in one.json["messages"]]
    assert said.count(" w0 w1 w2") == 8 * (1 + 2)


def test_a_run_that_is_stopped_writes_a_row_for_every_turn(workload, tmp_path):
    """Turns under way are cut, and those that were not sent say so."""
    part = share(tmp_path)
    runs = []

    def script(asked):
        if asked.nth == 5:
            runs[0].stop()
        return [HEAD, 30.0]

    def make(url):
        runs.append(LoadRun(settings(url, workload), part))
        return runs[0]

    _, result, _ = play(script, make)
    rows, _ = read_rows(part.folder)
    found = collections.Counter(row.error for row in rows)
    assert (len(rows), result.error) == (24, None)
    assert found["cut"] + found["not_sent"] == 24
    assert found["cut"] >= 4
    assert {row.error_message for row in rows if row.error == "cut"} == {
        "the run was stopped before the answer was complete"
    }


def test_a_slow_server_does_not_delay_the_sessions_that_follow(workload, tmp_path):
    """All eight have begun before the first answer is there."""
    part = share(tmp_path)
    play(
        lambda _: answer(1, first=0.3),
        lambda url: LoadRun(settings(url, workload), part),
    )
    rows, _ = read_rows(part.folder)
    firsts = [row for row in rows if row.turn == 1]
    assert [row.intended_s for row in firsts] == pytest.approx([i / 100 for i in range(8)])
    assert max(row.sent_s for row in firsts) < min(row.first_token_s for row in firsts)


def test_a_target_that_serves_no_models_is_told_before_anything_is_sent(workload, tmp_path):
    """It is not the server that was meant."""

    async def main():
        """Serve and play."""
        async with ScriptedTarget(lambda _: plain(404, b'{"detail":"Not Found"}')) as server:
            run = LoadRun(settings(server.url, workload), share(tmp_path))
            result = await asyncio.get_running_loop().run_in_executor(None, run.run)
            return server.url.removeprefix("http://"), result

    authority, result = uvloop.run(main())
    assert result.exit_code == 3
    assert result.error.startswith(
        f'{authority} does not list its models: 404: {{"detail":"Not Found"}} (hint: '
    )


def test_a_workload_that_is_not_there_is_the_callers_fault(tmp_path):
    """Nothing is written."""
    run = LoadRun(settings("http://127.0.0.1:9", tmp_path / "nix.yaml"), share(tmp_path))
    result = run.run()
    assert result.exit_code == 2
    assert "nix.yaml: cannot be read" in result.error
    assert RunFolder(tmp_path / "run").rows_paths() == []


def test_a_disk_that_takes_no_more_rows_never_passes_for_a_good_run(workload, tmp_path):
    """The run ends, says so, and has a code that is not 0."""
    part = share(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(_run, _server):
        deadline = time.monotonic() + 5
        while not part.folder.rows_path(0).exists() and time.monotonic() < deadline:
            pass
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))

    async def main():
        """Serve and play."""
        async with ScriptedTarget(lambda _: answer(2)) as server:
            run = LoadRun(settings(server.url, workload, model="tiny"), part)
            run.go(utc() + timedelta(seconds=0.3))
            loop = asyncio.get_running_loop()
            thread = loop.run_in_executor(None, run.run)
            await loop.run_in_executor(None, full, run, server)
            return await thread

    try:
        result = uvloop.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot write rows" in result.error
    assert result.exit_code == 2
    assert 0 < result.rows < 24


def test_a_fault_of_our_own_never_passes_for_a_good_run(workload, tmp_path, monkeypatch):
    """Its trace is kept."""
    part = share(tmp_path)

    def break_down(*_arguments, **_more):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("kvbench.load.desk.sent", break_down)
    _, result, _ = play(lambda _: answer(2), lambda url: LoadRun(settings(url, workload), part))
    assert "ZeroDivisionError: a bug" in result.error
    assert result.exit_code == 1
