"""How far the load generator's clock can be trusted: its times against those of a known pod.

A pod with a known time line (`known_pod.c`, compiled here with `cc`) answers N streams that begin
at once; it notes when each request had arrived (by the kernel's stamp), and when it wrote each
token. The generator is started as `kvbench run` starts it, Locust and all, on a core
of its own. What the row of a turn says about its times, minus what the pod knows, is the error.

    python scripts/bench_load.py 50 200 500 1000            # the sizes of the table in the docs
    python scripts/bench_load.py --repeat 3 --realtime 200  # on a machine that others use (as root)

Each stream is a conversation of two turns, so the second has a connection that was used before.
From 1,000 streams on, tokens come 40 ms apart, else 20. The pod's own lateness is no error of the
generator's and is taken out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench.records.manifest import Manifest
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.stack.loadgen import locust_command

FIRST = 0.2  # seconds until the first token
TOKENS = 50
THINK = 0.5  # seconds between the turns of a conversation
LEAD = 0.5  # seconds that the generator has before second 0
SERVER_CORE, CLIENT_CORE = 0, 1
SOURCE = Path(__file__).with_name("known_pod.c")

HEADS = (
    "streams", "TTFT error p50/p99/max ms", "merged first reads", "ITL error p50/p99 ms",
    "TPOT error p99 %", "CPU s per 1,000", "RSS MB", "load delivered %", "sent late p99 ms",
    "loop delay p99 ms", "pod's own lateness p99 ms",
)  # fmt: skip


def compiled(folder: Path) -> Path:
    """Return the pod's program, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("a C compiler is needed: the pod must be faster than what it measures")
    pod = folder / "known_pod"
    subprocess.run([compiler, "-O2", "-o", str(pod), str(SOURCE)], check=True)  # noqa: S603 - ours
    return pod


def gap_of(streams: int) -> float:
    """Return the seconds between two tokens."""
    return 0.02 if streams < 1000 else 0.04


@dataclass(frozen=True, slots=True)
class Known:
    """What the pod wrote down: by request, seconds from its arrival to each token."""

    times: dict[str, np.ndarray]
    late_p99: float


class Pod:
    """A running pod."""

    def __init__(self, program: Path, streams: int, *, realtime: bool) -> None:
        gap = gap_of(streams)
        words = [str(program), str(int(1e6 * FIRST)), str(int(1e6 * gap)), str(TOKENS)]
        self._process = subprocess.Popen(  # noqa: S603 - compiled here
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: settle(SERVER_CORE, realtime=realtime),  # noqa: PLW1509 - there is one thread
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def end(self) -> Known:
        """Stop it, and return its notes."""
        said, _ = self._process.communicate()
        head, *lines = said.splitlines()
        notes = [line.split(" ") for line in lines]
        times = {name: np.array(at, dtype=np.int64) / 1e6 for name, *at in notes}
        return Known(times, int(head.split()[1]) / 1e6)


def settle(core: int, *, realtime: bool) -> None:
    """Bind this process to a core, and let nobody else have it first if asked for."""
    os.sched_setaffinity(0, {core})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))


def generate(url: str, streams: int, folder: Path, *, realtime: bool) -> float:
    """Run the generator; return its largest resident size, MB."""
    workload = folder / "burst.yaml"
    workload.write_text(
        f"name: burst\nsessions: {{count: {streams}, turns: 2, user_tokens: 200, "
        f"answer_tokens: {TOKENS}, think: {THINK}}}\n"
        f"arrival: {{burst: {{size: {streams}, every: 1}}}}\n"
    )
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.write_manifest(Manifest(target=url))  # it is the parent's, as in `kvbench run`
    command = locust_command(host=url, run_dir=run.path, workload=workload, model="tiny")
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command, stdout=log, stderr=log, env=env,
            preexec_fn=lambda: settle(CLIENT_CORE, realtime=realtime),  # noqa: PLW1509 - there is one thread
        )  # fmt: skip
        largest = 0.0
        while process.poll() is None:
            largest = max(largest, high_water(process.pid))
            time.sleep(0.1)
        assert process.returncode == 0, log.seek(0) or log.read()
    return largest


def high_water(pid: int) -> float:
    """Return the most memory that a process has had resident, MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(sizes[0]) / 1024 if sizes else 0.0


def measure(program: Path, streams: int, *, realtime: bool) -> list[float]:
    """Run one size; return the numbers of a line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pod = Pod(program, streams, realtime=realtime)
        rss = generate(pod.url, streams, folder, realtime=realtime)
        known = pod.end()
        rows, _ = read_rows(RunFolder(folder / "run"))
        (said,) = RunFolder(folder / "run").read_testimonies()
    ttft, tpot, late, gaps, merged = [], [], [], [], 0
    for row in rows:
        assert row.ttft_s is not None, row
        assert row.tpot_s is not None, row
        written = known.times[row.request_id]
        ttft.append(1000 * (row.ttft_s - written[0]))
        tpot.append(100 * abs(row.tpot_s * (TOKENS - 1) / (written[-1] - written[0]) - 1))
        late.append(1000 * (row.lateness_s or 0.0))
        gaps.append(1000 * np.abs(np.array(row.chunk_gaps_s) - np.diff(written)))
        merged += row.first_read_chunks != 1
    wall = max(row.end_s or 0.0 for row in rows)
    ideal = 2 * (FIRST + (TOKENS - 1) * gap_of(streams)) + THINK
    cpu = (said.cpu_share or 0.0) * (wall + LEAD) * 1000 / len(rows)
    p = np.percentile
    return [
        p(ttft, 50), p(ttft, 99), max(ttft), merged, p(np.concatenate(gaps), 50),
        p(np.concatenate(gaps), 99), p(tpot, 99), cpu, rss,
        100 * ideal / wall, p(late, 99), 1000 * (said.loop_delay_p99_s or 0.0),
        1000 * known.late_p99,
    ]  # fmt: skip


def line(streams: int, found: list[float]) -> str:
    """Return a line of the table."""
    t50, t99, most, merged, i50, i99, tpot, cpu, rss, load, late, delay, pod = found
    cells = [
        str(streams), f"{t50:.2f} / {t99:.2f} / {most:.2f}", f"{merged:.0f} of {2 * streams}",
        f"{i50:.2f} / {i99:.2f}", f"{tpot:.2f}", f"{cpu:.2f}", f"{rss:.0f}",
        f"{load:.0f}", f"{late:.1f}", f"{delay:.1f}", f"{pod:.1f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("streams", nargs="*", type=int, default=[50, 200, 500, 1000])
    parser.add_argument("--repeat", type=int, default=1, help="runs of each size; medians are told")
    parser.add_argument("--realtime", action="store_true", help="others give way (as root)")
    given = parser.parse_args()
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    with tempfile.TemporaryDirectory() as name:
        program = compiled(Path(name))
        for streams in given.streams:
            found = [
                measure(program, streams, realtime=given.realtime) for _ in range(given.repeat)
            ]
            print(line(streams, list(np.median(np.array(found), axis=0))), flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}, {given.repeat} runs of each")


if __name__ == "__main__":
    main()
