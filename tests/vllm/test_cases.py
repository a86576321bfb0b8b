"""Every `.cache` file, and many made by chance, played to the cache manager of the real vLLM."""

import os
import random
import subprocess
from pathlib import Path

import pytest
from cache_backends import PoolBackend
from cache_language import CASES, Case

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def play(paths):
    """Play files to the real engine; all must hold."""
    python = Path(os.environ["REAL_VLLM"]).parent / "venv" / "bin" / "python"
    command = [python, Path(__file__).parent / "cases_in_vllm.py", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    held = [line.removeprefix("holds: ") for line in done.stdout.splitlines()]
    assert held == [path.stem for path in paths], done.stderr[-2000:]


def write_case(path, rng):
    """Write down what our pool does with requests made by chance."""
    backend, running = PoolBackend(), []
    case = Case(path, backend)
    lines = [f"pool {rng.randrange(3, 14)} blocks of 16"]
    case.do(lines[0], 1)
    for number in range(80):
        choice = rng.random()
        if running and choice < 0.4:
            name = running.pop(rng.randrange(len(running)))
            backend.free(name)
            lines.append(f"free {name}")
        elif choice < 0.45:
            lines.append("clear" if backend.clear() else "clear refused")
        else:
            letters = " ".join(rng.choices("AB", k=rng.randrange(1, 7)) + rng.choice([[], ["c"]]))
            hit = backend.ask(f"r{number}", case.tokens(letters))
            running += [] if hit is None else [f"r{number}"]
            lines.append(f"ask r{number}: {letters} → {'waits' if hit is None else f'hit {hit}'}")
        told = [" ".join([kind, *(chr(t[-1]) for t in rest)]) for kind, *rest in backend.events()]
        lines.append(f"events: {', '.join(told)}")
    path.write_text("\n".join(lines), encoding="utf-8")


def test_every_case_holds_in_the_real_engine_as_well():
    """What the files say in words is what vLLM does, and not what we think that it does."""
    play(CASES)


def test_what_our_pool_does_by_chance_the_real_engine_does_as_well(tmp_path):
    """Hits, waits, victims and their order over some 8,000 sentences."""
    rng = random.Random(os.environ.get("RECORDING_SEED", "cases"))
    paths = [tmp_path / f"chance{number}.cache" for number in range(50)]
    for path in paths:
        write_case(path, rng)
    play(paths)
