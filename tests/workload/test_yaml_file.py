"""YAML files: plain values, their lines, and every way to be refused."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.workload.yaml_file import MOST_BYTES, read_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def write(tmp_path, content):
    """Write a file and return its path."""
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_values_come_with_their_lines(tmp_path):
    """Keys and items know their line; what is not there has the line of what is around it."""
    path = write(tmp_path, "a: 1\nb:\n  - x\n  - {c: 2.5,\n     d: yes}\n")
    file = read_yaml(path)
    assert file.content == {"a": 1, "b": ["x", {"c": 2.5, "d": True}]}
    assert file.where(("a",)) == f"{path}:1"
    assert file.where(("b", 1, "d")) == f"{path}:5"
    assert file.where(("b", 1, "missing")) == f"{path}:4"
    assert file.where(("missing",)) == f"{path}:1"


def test_a_byte_order_mark_is_passed_over(tmp_path):
    """Some editors write one."""
    assert read_yaml(write(tmp_path, b"\xef\xbb\xbfa: 1")).content == {"a": 1}


def test_aliases_stand_for_what_they_name(tmp_path):
    """As long as the whole stays small."""
    assert read_yaml(write(tmp_path, "a: &x [1]\nb: *x")).content == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        pytest.param("", None, "expected keys and values, got an empty file", id="empty"),
        pytest.param(
            "# nothing\n", None, "expected keys and values, got an empty file", id="a comment alone"
        ),
        pytest.param("a: [1\nb: 2", 2, "not YAML: expected ',' or ']'", id="a bracket open"),
        pytest.param("a: 1\n b: 2", 2, "not YAML: mapping values are not", id="indented"),
        pytest.param("a: \x00", None, "not YAML: unacceptable character", id="control"),
        pytest.param("a: 1\n---\nb: 2", 2, "not YAML: but found another", id="two documents"),
        pytest.param("a: *x", 1, "not YAML: found undefined alias", id="an alias of nothing"),
        pytest.param("a: 1\nb: 2\na: 3", 3, "a: expected once, got twice", id="a key twice"),
        pytest.param("a:\n  b: 1\n  b: 2", 3, "a.b: expected once, got twice", id="twice inside"),
        pytest.param("? [1, 2]\n: 3", 1, "expected a word as key", id="a list as key"),
        pytest.param("a: !!python/object:os.system x", 1, "not YAML: could not", id="an object"),
        pytest.param("a: 2026-13-45", 1, "not a value: month must be", id="no such date"),
        pytest.param(f"a: {'9' * 5000}", 1, "not a value: Exceeds the limit", id="5,000 digits"),
        pytest.param(
            "a: 1\nb: \xff".encode("latin-1"), 2, "expected UTF-8, got byte 0xff", id="latin"
        ),
        pytest.param(BOMB, 1, "expected at most 20,000 values", id="a bomb of aliases"),
        pytest.param("a: &a [*a]", 1, "expected at most 50 levels", id="an alias of itself"),
        pytest.param(
            "[" * 60 + "]" * 60, 1, "not YAML: expected at most 50 levels", id="60 levels"
        ),
        pytest.param("[" * 9000, 1, "not YAML: expected at most 50 levels", id="9,000 levels"),
        pytest.param("#" * (MOST_BYTES + 1), None, "expected at most 1,000,000 bytes", id="large"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, content, line, says):
    """File, line where there is one, and what is wrong."""
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    where = f"{path}:{line}: " if line else f"{path}: "
    assert caught.value.message.startswith(where + says)


def test_a_missing_file_and_a_directory_are_input_errors(tmp_path):
    """The system's own words, with the path."""
    with pytest.raises(InputError, match=r"nowhere.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
