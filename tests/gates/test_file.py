import pytest

from kvbench.errors import InputError
from kvbench.gates.file import read_gates

WORKLOAD = """
name: chat
sessions: {count: 2, user_tokens: 10, answer_tokens: 5}
arrival: {constant: {rate: 1}}
"""


def _file(tmp_path, text):
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    return path


def test_gates_of_a_file_know_their_lines(tmp_path):
    """What CI annotates is the line in which a gate stands."""
    path = _file(tmp_path, "gates:\n  - ttft p95 < 400ms\n\n  - errors < 1%\n")
    assert [(g.text, g.where) for g in read_gates(path)] == [
        ("ttft p95 < 400ms", f"{path}:2"),
        ("errors < 1%", f"{path}:4"),
    ]


def test_a_workload_may_have_gates_or_none(tmp_path):
    """Its other keys are none of the gates' business."""
    assert read_gates(_file(tmp_path, WORKLOAD)) == []
    assert [g.text for g in read_gates(_file(tmp_path, WORKLOAD + "gates: [errors < 1%]"))] == [
        "errors < 1%"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gates:\n  - ttft p95 < 4\n", ':2: expected a duration such as 400ms or 2s, got "4"'),
        ("gates:\n  - ttft p95 < 4s\ngate: 1\n", ":3: gate: unknown key"),
        ("gates: []\n", ":1: gates: expected a list of gates such as `- ttft p95 < 400ms`"),
        ("other: 1\n", ":1: other: unknown key"),
        ("- ttft\n", ":1: expected a list under `gates:`"),
        (
            "gates:\n  - {ttft: 3}\n",
            ":2: gates: expected text such as `ttft p95 < 400ms`, got another value",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    """File, line, and what was expected."""
    path = _file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_gates(path)
    assert caught.value.message.startswith(f"{path}{message}")
