"""Who made which response."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router.fakes import CHAT, Client, House, chat, chunk, run, until

from kvbench.router.responses import RESPONSES, Preamble, Responses, asked_for

BEGUN = (
    b": hello\n\n"
    b"event: response.created\n"
    b'data: {"response":{"id":"resp_1","instructions":"event: response.x\\n"},"type":"x"}\n\n'
    b"event: response.in_progress\r\n"
    b'data: {"response":{"id":"resp_1"},"type":"response.in_progress"}\r\n\r\n'
)
DELTA = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'


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


@given(st.lists(st.integers(0, len(BEGUN)), max_size=8))
def test_that_a_response_has_begun_is_no_answer_however_it_is_cut(cuts):
    """The first event of another kind is."""
    edges = sorted({0, *cuts, len(BEGUN)})
    preamble = Preamble(stream=True)

    for start, end in pairwise(edges):
        assert not preamble.over((BEGUN[start:end],))
    assert preamble.over((DELTA[:5], DELTA[5:]))


@pytest.mark.parametrize(
    "piece",
    [
        BEGUN + DELTA,
        DELTA,
        b"event: response.failed\ndata: {}\n\n",
        b'data: {"choices":[]}\n\n',
        b": x\ndata: 1\n\n",
    ],
)
def test_an_answer_is_more_than_that_it_has_begun(piece):
    """In one piece or in several, of whatever kind."""
    assert Preamble(stream=True).over((piece,))


def test_an_answer_in_one_piece_has_no_preamble():
    """What it begins with is the answer."""
    assert Preamble(stream=False).over((b'{"id":"resp_1"',))


@pytest.mark.parametrize(
    ("path", "before", "first"),
    [
        (RESPONSES, BEGUN, DELTA),
        (CHAT, b": still there\n\n", b'data: {"choices":[]}\n\n'),
        ("/v1/messages", b": still there\n\n", b"event: message_start\ndata: {}\n\n"),
    ],
)
def test_a_prompt_is_computed_when_its_first_token_comes_and_not_before(path, before, first):
    """Else its pod would look idle, and as if it computed prompts in no time."""

    async def case():
        async def streams(call):
            await call.begin_stream(before)
            await call.gone()

        async with House(streams, policy="prefix_cost") as house:
            client = await Client.to(house.url)
            client.send("POST", path, chat("hello " * 400, stream=True))
            await client.head()
            await client.chunk()
            (load,) = house.in_flight()
            assert load[1] > 300
            await house.pods[0].calls[0].send(chunk(first))
            await client.chunk()
            assert house.in_flight() == [(1, 0)]
            client.vanish()
            await until(lambda: house.in_flight() == [(0, 0)])

    run(case)


@pytest.mark.parametrize(
    ("path", "event", "status"),
    [
        (CHAT, b'data: {"error": {"message": "died", "type": "x", "code": 500}}\n\n', 500),
        (CHAT, b'data: {"error":{"message":"\\"code\\":400","code":503}}\n\n', 503),
        (CHAT, b'data: {"error":{"message":"died"}}\n\n', 500),
        (CHAT, b': hm\n\ndata: {"error":{"code":400}}\n\n', 400),
        (RESPONSES, BEGUN + b'event: response.failed\ndata: {"x":1}\n\n', 500),
        (RESPONSES, BEGUN + b'event: error\ndata: {"x":1}\n\n', 500),
        ("/v1/messages", b'event: error\ndata: {"type":"error"}\n\n', 500),
        (CHAT, b'data: {"errors":{"code":500}}\n\n', 200),
        (CHAT, b'data: {"choices":[]}\n\ndata: {"error":{"code":500}}\n\n', 200),
    ],
)
def test_a_stream_that_begins_with_an_error_counts_as_answered_with_that(path, event, status):
    """Else a pod whose engine has died would be the fastest of all; the client sees it all."""

    async def case():
        async def streams(call):
            await call.begin_stream(event, b"data: [DONE]\n\n")
            await call.end_stream()

        async with House(streams, policy="prefix_cost") as house:
            client = await Client.to(house.url)
            for _ in range(3):
                reply = await client.ask("POST", path, chat("hello " * 400, stream=True))
                assert (reply.status, reply.whole, event in reply.body) == (200, True, True)
            await house.quiet()
            (entry,) = house.router.fleet.account.journal.latest(1)
            assert (entry.end, entry.status) == ("answered", status)
            assert (entry.ttft_s is None) == (status != 200)
            assert (entry.predicted_tokens > 0) == (status == 200)
            (pod,) = house.router.fleet.membership.pods.values()
            assert pod.breaker.closed == (status < 500)
            assert pod.refusals == (3 if status == 400 else 0)
            assert house.in_flight() == [(0, 0)]
            client.close()

    run(case)
