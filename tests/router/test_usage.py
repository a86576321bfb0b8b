"""Token counts found in passing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.router.usage import UsageFinder

STREAM = (
    b'data: {"choices":[{"delta":{"content":"say \\"usage\\":{\\"cached_tokens\\":9}"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":56,"total_tokens":62,"completion_tokens":6,'
    b'"prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":null}}}\n\n'
    b"data: [DONE]\n\n"
)


def counts(*pieces: bytes) -> tuple[int | None, int | None]:
    """Return prompt and cached tokens found in these pieces."""
    finder = UsageFinder()
    for piece in pieces:
        finder.feed(piece)
    return finder.tokens()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_counts_are_found_however_the_stream_is_cut(cuts):
    """Text that looks like usage is not usage: its quotes are escaped."""
    edges = [0, *sorted(cuts), len(STREAM)]

    assert counts(*(STREAM[a:b] for a, b in pairwise(edges))) == (56, 32)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"", (None, None), id="nothing"),
        pytest.param(b'{"usage": null}', (None, None), id="no usage"),
        pytest.param(b'{"usage":{"prompt_tokens":7}}', (7, None), id="unknown is not zero"),
        pytest.param(
            b'{"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}}',
            (7, 0),
            id="zero is zero, and spaces do not matter",
        ),
        pytest.param(
            b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":null}}}',
            (7, None),
            id="null is unknown",
        ),
        pytest.param(
            b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":5}},'
            b'"prompt_token_ids":[' + b"1," * 5000 + b"1]}",
            (7, 5),
            id="much may come behind it",
        ),
        pytest.param(
            b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":5}},'
            b'"prompt_logprobs":[null,{"9":{"logprob":-1.0,"decoded_token":"usage"}}]}',
            (7, 5),
            id="a token may be called usage",
        ),
        pytest.param(
            b'{"usage":{"input_tokens":9,"input_tokens_details":{"input_tokens_per_turn":[],'
            b'"cached_tokens":4},"output_tokens":2}}',
            (9, 4),
            id="a response",
        ),
        pytest.param(
            b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0'
            b'}}}\n\ndata: {"type":"message_delta","usage":{"input_tokens":5,"output_tokens":2,'
            b'"cache_creation_input_tokens":1,"cache_read_input_tokens":3}}\n\n',
            (9, 3),
            id="a message counts what was cached apart",
        ),
    ],
)
def test_counts_of_whole_answers(body, expected):
    """In one piece."""
    assert counts(body) == expected


def test_the_last_of_continuous_counts_is_kept():
    """A stream may repeat its usage in every chunk."""
    chunks = [b'data: {"usage":{"prompt_tokens":%d}}\n\n' % n for n in (1, 2, 3)]

    assert counts(*chunks) == (3, None)


def test_little_is_kept_of_a_long_body():
    """A bounded window."""
    finder = UsageFinder()
    finder.feed(b"x" * 10**6)
    finder.feed(b'"usage":' + b"y" * 10**6)

    assert len(finder._found) + len(finder._tail) < 2000


@pytest.mark.parametrize(
    ("body", "brief"),
    [
        (b'{"usage":{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1}}', True),
        (b'{"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0}}', True),
        (b'{"usage":{"input_tokens":7,"output_tokens": 1,"cache_read_input_tokens":0}}', True),
        (b'{"usage":{"input_tokens":7,"output_tokens":1,"output_tokens_details":{"x":5}}}', True),
        (b'{"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}', False),
        (b'{"usage":{"output_tokens":12,"output_tokens_details":{"reasoning_tokens":0}}}', False),
        (b'{"usage":{"prompt_tokens":1}}', False),
        (b'{"usage":null}', False),
        (b"", False),
    ],
)
def test_an_answer_of_one_token_says_so(body, brief):
    """Or of none; unknown is not zero."""
    finder = UsageFinder()
    finder.feed(body)

    assert finder.brief() == brief
