"""Reading request logs: what counts, and one sentence with file and line for what does not."""

import gzip
import json
from array import array

import pytest

from kvbench.errors import InputError
from kvbench.workload.requestlog import read_log

ROWS = [
    {"i": 0, "prompt_token_ids": [1, 2, 3], "max_tokens": 2, "output_token_ids": [8, 9], "x": 1},
    {"i": 0, "event": "reset_prefix_cache"},
    {"i": 1, "prompt_token_ids": [1, 2], "max_tokens": 5},
]


def write(tmp_path, *rows):
    """Write a log of rows, or of raw lines."""
    path = tmp_path / "some.requests.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def test_a_log_is_read_with_its_lines_its_answers_and_its_resets(tmp_path):
    """The reset stands before the request that follows it."""
    log = read_log(write(tmp_path, "", *ROWS))
    first, second = log.requests
    assert (log.name, log.timed) == ("some", False)
    assert (first.index, first.line, first.prompt) == (0, 2, array("I", [1, 2, 3]))
    assert (first.max_tokens, first.output, first.reset_before) == (2, array("I", [8, 9]), False)
    assert (second.index, second.line, second.max_tokens) == (1, 4, 5)
    assert (second.output, second.reset_before, second.session) == (None, True, "r1")


def test_a_compressed_log_is_read_as_it_is(tmp_path):
    """What matters is the content, not the name."""
    plain = write(tmp_path, *ROWS)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_log(packed).requests == read_log(plain).requests


def test_a_limit_keeps_the_first_requests_and_looks_no_further(tmp_path):
    """What is wrong behind it does not matter."""
    assert len(read_log(write(tmp_path, ROWS[0], "broken"), limit=1).requests) == 1


def test_an_answer_shorter_than_asked_for_ends_there(tmp_path):
    """The model has stopped by itself."""
    row = {"prompt_token_ids": [1], "max_tokens": 9, "output_token_ids": [5, 6]}
    assert read_log(write(tmp_path, row)).requests[0].max_tokens == 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt_token_ids": [1', "input data was truncated"),
        ("[1]", "expected object, got array"),
        ({"max_tokens": 3}, "prompt_token_ids: missing"),
        ({"prompt_token_ids": [], "max_tokens": 3}, "prompt_token_ids: expected array of length"),
        ({"prompt_token_ids": [1, -7], "max_tokens": 3}, "expected int >= 0, got -7"),
        ({"prompt_token_ids": [2**31], "max_tokens": 3}, "<= 2147483647, got 2147483648"),
        ({"prompt_token_ids": [1.5], "max_tokens": 3}, "[0]: expected int, got float"),
        ({"prompt_token_ids": "abc", "max_tokens": 3}, "prompt_token_ids: expected array"),
        ({"prompt_token_ids": [1]}, "max_tokens: missing"),
        ({"prompt_token_ids": [1], "max_tokens": -2}, "max_tokens: expected int >= 1, got -2"),
        ({"prompt_token_ids": [1], "max_tokens": True}, "max_tokens: expected int"),
        (
            {"prompt_token_ids": [1], "max_tokens": 1, "output_token_ids": [1, 2]},
            "output_token_ids: expected 1 to 1 tokens, got 2",
        ),
        ({"prompt_token_ids": [1], "max_tokens": 1, "i": 0}, "i: expected a number of its own"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "at": 3}, "at: expected in every row or in"),
        ({"event": "party"}, "event: invalid enum value 'party'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, row, said):
    """The first row is fine, the second is not."""
    path = write(tmp_path, ROWS[0], row)
    with pytest.raises(InputError) as error:
        read_log(path)
    assert error.value.message.startswith(f"{path}:2: ")
    assert said in error.value.message
    assert error.value.hint


def test_times_must_not_run_backwards(tmp_path):
    """A log is in the order of sending."""
    rows = [{"prompt_token_ids": [1], "max_tokens": 1, "at": at} for at in (1, 0.5)]
    with pytest.raises(InputError, match=r"at: expected at least 1 as in the row before, got 0\.5"):
        read_log(write(tmp_path, *rows))


def test_files_that_are_no_logs_are_refused(tmp_path):
    """Missing, empty, or cut in the middle of the compressed data."""
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_log(tmp_path / "none")
    with pytest.raises(InputError, match="expected at least one request, got none"):
        read_log(write(tmp_path, ROWS[1]))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(ROWS[0]).encode() * 99)[:-12])
    with pytest.raises(InputError, match="cannot be decompressed"):
        read_log(cut)
