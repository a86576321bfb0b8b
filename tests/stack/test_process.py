"""Child processes: ready lines, logs, and that none outlives its parent."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kvbench.errors import InputError, TargetError
from kvbench.stack.process import Child, logs_folder

SERVES = "import sys; print('ready http://127.0.0.1:7', flush=True); sys.stdin.read()"
PARENT = """
import sys
from pathlib import Path
from kvbench.stack.process import Child
child = Child("pod 1", [sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
child.wait_ready(30)
print(child.pid, flush=True)
sys.stdin.read()
"""


def gone(pid: int, within: float) -> bool:
    """Return whether the process ends within so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within)[0])
    finally:
        os.close(descriptor)


def test_a_child_says_where_it_answers(tmp_path):
    """The URL comes from the child, which knows the port it was given."""
    with Child("pod 1", [sys.executable, "-c", SERVES], tmp_path / "log") as child:
        assert child.wait_ready(30) == "http://127.0.0.1:7"
        assert child.poll() is None
    assert child.poll() is not None


def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_words(tmp_path):
    """The person sees why, without opening a log."""
    command = [sys.executable, "-c", "import sys; sys.exit('no such model: x')"]
    with Child("pod 2", command, tmp_path / "log") as child, pytest.raises(TargetError) as error:
        child.wait_ready(30)
    assert error.value.message == "pod 2 ended with 1\n    no such model: x"


def test_a_child_that_was_given_nonsense_makes_it_the_users_error(tmp_path):
    """Its exit code says whose fault it is, and goes on saying so."""
    command = [sys.executable, "-c", "import sys; print('no policy x', file=sys.stderr); exit(2)"]
    with Child("router", command, tmp_path / "log") as child, pytest.raises(InputError) as error:
        child.wait_ready(30)
    assert error.value.message == "router ended with 2\n    no policy x"


def test_a_child_that_is_silent_is_not_waited_for_for_ever(tmp_path):
    """A part that hangs while it starts ends the start, not the evening."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with Child("router", command, tmp_path / "log") as child, pytest.raises(TargetError) as error:
        child.wait_ready(0.05)
    assert error.value.message == "router was not ready after 0.05 s"


def test_a_child_that_ignores_a_polite_request_is_ended_all_the_same(tmp_path):
    """Stopping is certain."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stubborn = f"{ignore}\n{SERVES}\nwhile True: signal.pause()"
    child = Child("pod 1", [sys.executable, "-c", stubborn], tmp_path / "log")
    child.wait_ready(30)
    assert child.stop(grace=0.1) == -signal.SIGKILL


@pytest.mark.parametrize("serves", [True, False])
def test_what_a_child_prints_is_logged_and_never_holds_it_up(tmp_path, serves):
    """A pipe takes 64 KiB: who prints more, as a real engine does, would wait for a reader."""
    ready = "print('ready http://127.0.0.1:7', flush=True)" if serves else "pass"
    prints = f"{ready}\nfor number in range(20_000): print('GET /health', number)"
    with Child("pod 1", [sys.executable, "-c", prints], tmp_path / "log") as child:
        if serves:
            assert child.wait_ready(30) == "http://127.0.0.1:7"
        assert child.wait(30) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [f"GET /health {number}" for number in range(20_000)]


def test_a_full_disk_costs_the_log_and_not_the_child():
    """Where the log ends, what the child prints is still read."""
    prints = "print('ready http://127.0.0.1:7', flush=True)\nfor _ in range(20_000): print('GET')"
    with Child("pod 1", [sys.executable, "-c", prints], Path("/dev/full")) as child:
        assert child.wait_ready(30) == "http://127.0.0.1:7"
        assert child.wait(30) == 0


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    """Nothing is left running, whatever happens to the parent."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SERVES, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert gone(pid, within=30)


@pytest.mark.parametrize(
    ("ending", "stays"), [(None, False), (KeyboardInterrupt(), False), (TargetError("x"), True)]
)
def test_logs_stay_where_a_part_failed_and_nowhere_else(tmp_path, monkeypatch, ending, stays):
    """An error names its log; a success or Ctrl-C leaves nothing to name."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with suppress(KeyboardInterrupt, TargetError), logs_folder("test") as folder:
        if ending is not None:
            raise ending
    assert folder.parent == tmp_path
    assert folder.exists() == stays
