"""The command line of the load generator, which Locust must understand."""

from pathlib import Path

from kvbench.load.settings import OPTIONS, Settings
from kvbench.stack.loadgen import LOCUSTFILE, complaints, locust_command


def given(command):
    """Return the flags with values of a command, by name."""
    return dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)


def test_every_value_arrives_under_the_flag_that_the_load_generator_knows():
    """The two cannot import each other, so this holds them together."""
    flags = given(
        locust_command(
            host="http://pod:8000",
            run_dir=Path("runs/x"),
            trace=Path("t.jsonl"),
            limit=5,
            speed=2.0,
            seed=7,
            model="m=1",
            tokenizer=Path("tok"),
            isolation="none",
            block_size=32,
            request_timeout_s=1.5,
            max_in_flight=9,
        )
    )
    host = flags.pop("--host")
    assert set(flags) <= {option.flag for option in OPTIONS}
    options = {option.name: flags.get(option.flag, option.default) for option in OPTIONS}
    settings = Settings.parse(host, options)
    assert (settings.host, settings.run_dir) == ("http://pod:8000", Path("runs/x"))
    assert (settings.trace, settings.workload, settings.tokenizer) == (
        Path("t.jsonl"),
        None,
        Path("tok"),
    )
    assert (settings.limit, settings.speed, settings.seed, settings.model) == (5, 2.0, 7, "m=1")
    assert (settings.isolation, settings.block_size) == ("none", 32)
    assert (settings.request_timeout, settings.max_in_flight) == (1.5, 9)


def test_it_runs_the_locustfile_without_a_web_ui_and_without_judging():
    """A failed turn is a row, and judging rows is the parent's business."""
    command = locust_command(host="http://pod", run_dir=Path("r"), workload=Path("w.yaml"))
    assert command[1:5] == ["-m", "locust", "-f", str(LOCUSTFILE)]
    assert LOCUSTFILE.is_file()
    assert "--headless" in command
    assert command[command.index("--exit-code-on-error") + 1] == "0"


def test_workers_meet_on_loopback():
    """And only where there is more than one."""
    one = locust_command(host="http://pod", run_dir=Path("r"), workload=Path("w.yaml"))
    two = locust_command(
        host="http://pod", run_dir=Path("r"), workload=Path("w.yaml"), processes=2, master_port=77
    )
    assert not any("master" in word or "processes" in word for word in one)
    assert {"--processes": "2", "--master-bind-host": "127.0.0.1"}.items() <= given(two).items()
    assert (given(two)["--master-port"], given(two)["--master-bind-port"]) == ("77", "77")


def test_what_is_wrong_is_found_in_the_log_once_and_in_its_own_words():
    """Among Locust's tables, which come last."""
    log = (
        "[2026-11-30 00:48:59,1] vm/ERROR/kvbench: rows.jsonl: cannot write rows: full\n"
        "[2026-11-30 00:48:59,2] vm/ERROR/kvbench: rows.jsonl: cannot write rows: full\n"
        "[2026-11-30 00:48:59,2] vm/WARNING/kvbench: rows are in runs/x\nType     Name   # reqs\n"
    )
    assert complaints(log) == ["rows.jsonl: cannot write rows: full"]
    assert complaints("Type     Name   # reqs\n") == []
