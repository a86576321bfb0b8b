"""Who made which response."""

from __future__ import annotations

import pytest

from kvbench.router.responses import Responses, asked_for


@pytest.mark.parametrize(
    "piece",
    [
        b'{"id":"resp_1a-B","object":"response","output":[{"id":"msg_2"}]}',
        b'event: response.created\ndata: {"type":"x","response":{"id": "resp_1a-B"}}\n\n',
        b'{"object":"response","error":null,"id" : "resp_1a-B"}',
    ],
)
def test_the_id_is_read_off_the_beginning_of_an_answer(piece):
    """Whole or streamed, wherever it stands."""
    responses = Responses()
    responses.read(piece, "a")

    assert responses.maker("resp_1a-B") == "a"


@pytest.mark.parametrize("piece", [b"", b"nope", b'{"id":"chatcmpl-1"}', b'{"id":"resp_', b"\xff"])
def test_what_names_no_response_teaches_nothing(piece):
    """An error, another API, a piece that ends too early."""
    responses = Responses()
    responses.read(piece, "a")

    assert responses.maker("resp_") is None


def test_the_last_so_many_are_remembered():
    """The oldest go first."""
    responses = Responses(most=2)
    for number in range(3):
        responses.read(b'{"id":"resp_%d"}' % number, f"pod {number}")

    made = [responses.maker(f"resp_{number}") for number in range(3)]
    assert made == [None, "pod 1", "pod 2"]


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/cancel", "resp_1"),
        ("/v1/responses", ""),
        ("/v1/responses/", ""),
        ("/x/v1/responses/resp_1", ""),
        ("/v1/models", ""),
    ],
)
def test_a_path_is_about_the_response_that_it_names(path, response):
    """And about none elsewhere."""
    assert asked_for(path) == response
