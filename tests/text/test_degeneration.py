"""What is flagged and what is not: false positives on normal text, and every injected kind."""

from __future__ import annotations

import json
import random
import sysconfig
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.text.degeneration import degeneration, refused_for_length, words

ROOT = Path(__file__).parents[2]
WINDOWS = 400
LENGTHS = (400, 1000, 4000)


@cache
def corpus(kind: str) -> str:
    """Return normal text of one kind."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if kind == "code":
        files = sorted(library.glob("*.py"))[:80]
        return "\n".join(path.read_text(errors="ignore") for path in files)
    if kind == "english":
        from pydoc_data.topics import topics

        return "\n".join(topics.values())
    if kind == "chinese":
        return (Path(__file__).parent / "chinese.txt").read_text()
    if kind == "json":
        models = json.loads((ROOT / "kvbench" / "engine" / "data" / "models.json").read_text())
        rng = random.Random(7)
        rows = [
            {"id": rng.getrandbits(40), "name": rng.choice(WORDS), "tags": rng.sample(WORDS, 3),
             "score": rng.random(), "active": rng.random() < 0.5, "parent": None}
            for _ in range(300)
        ]  # fmt: skip
        return json.dumps(models) + json.dumps(rows, indent=2)
    assert kind == "tables"
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("|")]
    return "\n".join(lines)


WORDS = ["river", "stone", "lamp", "cloud", "paper", "green", "seven", "window", "table"]
NORMAL = " ".join(random.Random(1).choices([f"{w}{n}" for w in WORDS for n in range(13)], k=300))


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        pytest.param("english", 0.01, id="English"),
        pytest.param("chinese", 0.0, id="Chinese"),
        pytest.param("code", 0.01, id="Python"),
        pytest.param("json", 0.02, id="JSON"),
        pytest.param("tables", 0.02, id="Markdown tables"),
    ],
)
def test_normal_text_is_hardly_ever_flagged(kind, most):
    """The rate of false positives over windows of three lengths, each window anywhere."""
    text = corpus(kind)
    rng = random.Random(f"windows of {kind}")
    flagged = 0
    for number in range(WINDOWS):
        length = LENGTHS[number % len(LENGTHS)]
        start = rng.randrange(max(len(text) - length, 1))
        flagged += degeneration(text[start : start + length]) is not None

    assert flagged / WINDOWS <= most


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param("again " * 64, "loop", id="a word"),
        pytest.param("no " * 10_000, "loop", id="a word, for ever"),
        pytest.param("The sky is blue today. " * 12 + "The sky", "loop", id="a sentence, cut"),
        pytest.param(NORMAL + " and so it goes on" * 9, "loop", id="it begins at the end"),
        pytest.param(
            NORMAL + "".join(f" {i % 40}x{i % 40}" for i in range(130)), "loop", id="long period"
        ),
        pytest.param("a" * 500, "loop", id="a character, without a space"),
        pytest.param("!" * 500, "loop", id="a sign"),
        pytest.param("哈" * 60, "loop", id="a Chinese character"),
        pytest.param(
            "".join(random.Random(2).choices("#@!%&*^~|", k=300)), "salad", id="random signs"
        ),
        pytest.param(
            " ".join(random.Random(3).choices([*"abcdefghij"], k=300)), "salad", id="ten letters"
        ),
        pytest.param("", "empty", id="nothing"),
        pytest.param(" \n\n ", "empty", id="white space"),
        pytest.param(NORMAL, None, id="normal text"),
        pytest.param("yes " * 20, None, id="too short to say"),
        pytest.param("1, 2, 3, 4", None, id="short"),
    ],
)
def test_what_is_injected_is_caught_and_what_is_normal_is_not(answer, kind):
    """Each kind by several examples."""
    assert degeneration(answer, finish_reason="stop") == kind


@given(st.integers(1, 128), st.integers(0, 3), st.integers(0, 2**30))
def test_every_exact_loop_at_the_end_is_caught_wherever_it_began(period, more, seed):
    """Three copies or more of anything, behind normal text, the last word cut."""
    rng = random.Random(seed)
    unit = [f"{rng.choice(WORDS)}{''.join(rng.choices('abcde', k=5))}" for _ in range(period)]
    copies = max(3, -(-32 // period)) + more

    assert degeneration(f"{NORMAL} {' '.join(unit * copies)} riv") == "loop"


def test_an_answer_that_says_the_prompt_back_is_an_echo_and_one_that_quotes_it_is_not():
    """More than six tenths in one piece."""
    prompt = f"Summarise this text: {NORMAL} Be brief."
    half = NORMAL[: len(NORMAL) // 2]
    other = " ".join(f"own{n}" for n in range(400))

    assert degeneration(NORMAL, prompt) == "echo"
    assert degeneration(f"Sure! {half}", prompt) == "echo"
    assert degeneration(f"{half[:300]} {other}", prompt) is None
    assert degeneration(NORMAL, other) is None


def test_an_answer_that_the_window_cut_is_an_overflow():
    """It was cut for length before it had what was asked for; one that had it all was not."""
    cut = degeneration(NORMAL, finish_reason="length", generated=70, asked=100)

    assert cut == "overflow"
    assert degeneration(NORMAL, finish_reason="length", generated=100, asked=100) is None
    assert degeneration(NORMAL, finish_reason="stop", generated=70, asked=100) is None
    assert degeneration("again " * 64, finish_reason="length", generated=7, asked=9) == "loop"


def test_a_request_that_was_refused_for_its_length_is_known_by_the_servers_words():
    """As vLLM and its relatives put it."""
    said = "400: This model's maximum context length is 8192 tokens. However, you requested 9000"

    assert refused_for_length(400, said)
    assert not refused_for_length(400, "400: temperature must be non-negative")
    assert not refused_for_length(500, said)


def test_words_are_runs_signs_and_characters_of_scripts_without_spaces():
    """So that a loop has the same period in every script."""
    assert words("x_1 = f(a2), 好的 ok!") == [
        "x", "_", "1", "=", "f", "(", "a", "2", ")", ",", "好", "的", "ok", "!",
    ]  # fmt: skip


@given(st.text(max_size=3000), st.text(max_size=300))
def test_any_text_can_be_judged(answer, prompt):
    """Surrogates and all."""
    assert degeneration(answer, prompt) in {"loop", "salad", "echo", "empty", None}
