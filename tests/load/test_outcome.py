"""From replies to rows; how broken answers are judged is in `test_client`."""

import msgspec
import pytest
from fakes_load import turn

from kvbench.load.outcome import MAX_MESSAGE, judge, sent, server_message
from kvbench.load.reply import Reply
from kvbench.openai.stream import StreamFold
from kvbench.records.unsent import Expected, unsent

TURN = turn(5, session="s", number=2, think=1.0)


def not_sent():
    """Return the row of a turn that was not sent."""
    expected = Expected(prompt_tokens=100, cached_tokens=64)
    return unsent(TURN, worker=3, intended=7.0, expected=expected, request_id="run-5")


def answered(stream: bytes, **headers: str) -> Reply:
    """Return a settled reply that ended at 112 s."""
    reply = Reply(StreamFold(), sent=107.25, headers_at=108.0, end=112.0, status=200)
    reply.headers = {"content-type": "text/event-stream", **headers}
    for second, event in enumerate(stream.split(b"|")):
        reply.add(109.0 + second, b"data: " + event + b"\n\n")
    reply.settle()
    return reply


STREAM = (
    b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}|'
    b'{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}|'
    b'{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"length"}]}|'
    b'{"choices":[],"usage":{"prompt_tokens":101,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":48}}}|[DONE]'
)


def test_a_turn_that_was_not_sent_has_no_times_but_the_intended_one():
    """What was planned is known all the same."""
    row = not_sent()
    assert (row.index, row.session, row.turn, row.worker, row.intended_s) == (5, "s", 2, 3, 7.0)
    assert (row.sent_s, row.end_s, row.status, row.pod) == (None, None, None, None)
    assert (row.error, row.planned_prompt_tokens, row.ceiling_tokens) == ("not_sent", 100, 64)
    assert row.dropped_tokens == 0


def test_the_row_of_an_answer_has_its_times_from_the_start_of_the_run():
    """First token of any kind, first answer, last token."""
    reply = answered(STREAM)
    row = sent(not_sent(), reply, reply.fold, start=100.0, pod="pod:1")
    assert (row.intended_s, row.sent_s, row.headers_s) == (7.0, 7.25, 8.0)
    assert (row.first_token_s, row.first_answer_s, row.last_token_s, row.end_s) == (10, 11, 11, 12)
    assert row.chunk_gaps_s == [1.0]
    assert row.first_read_chunks == 1
    assert (row.error, row.error_message, row.finish_reason) == (None, None, "length")
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (101, 48, 2)
    assert row.pod == "pod:1"


def test_the_router_says_which_pod_answered_and_why():
    """Its headers win over the target's own name."""
    headers = {
        "x-kvbench-pod": "b",
        "x-kvbench-policy": "prefix_cost",
        "x-kvbench-predicted-tokens": "48",
    }
    reply = answered(STREAM, **headers)
    row = sent(not_sent(), reply, reply.fold, start=100.0, pod="router:1")
    assert (row.pod, row.policy, row.predicted_tokens) == ("b", "prefix_cost", 48)


@pytest.mark.parametrize("text", ["-1", "many", "", "1.5"])
def test_a_prediction_that_is_no_number_is_unknown(text):
    """A proxy may write what it likes."""
    reply = answered(STREAM, **{"x-kvbench-predicted-tokens": text})
    assert sent(not_sent(), reply, reply.fold, start=100.0, pod="p").predicted_tokens is None


def test_a_turn_that_never_got_a_connection_was_answered_by_nobody():
    """And was not sent."""
    reply = Reply(StreamFold(), end=108.0, failure=("connect", "refused"))
    row = sent(not_sent(), reply, reply.fold, start=100.0, pod="pod:1")
    assert (row.error, row.error_message, row.sent_s, row.pod) == ("connect", "refused", None, None)
    assert row.end_s == 8.0


def test_a_server_error_wins_over_what_the_connection_did():
    """It is the cause."""
    reply = answered(b'{"error":{"message":"out of memory"}}')
    reply.failure = ("cut", "connection reset")
    assert judge(reply, reply.fold) == ("server", "out of memory")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"error":{"message":"a"}}', "a", id="OpenAI's form"),
        pytest.param(b'{"error":"b"}', "b", id="a bare sentence"),
        pytest.param(b'{"object":"error","message":"c"}', "c", id="vLLM's older form"),
        pytest.param(b'{"detail":"d"}', '{"detail":"d"}', id="another form, as it is"),
        pytest.param(b"[1]", "[1]", id="no object"),
        pytest.param(b"\xff\xfe", "\ufffd\ufffd", id="no text"),
        pytest.param(b" \n", "(empty body)", id="nothing"),
        pytest.param(b"x" * 1000, "x" * MAX_MESSAGE, id="too much"),
    ],
)
def test_the_sentence_of_an_error_body_is_found(body, message):
    """In whatever form servers say it."""
    assert server_message(body) == message


def said(text: str, usage: tuple[int, int] = (101, 40), finish: str = "length") -> Reply:
    """Return the reply of an answer with this text."""
    piece = msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": text}}]})
    end = msgspec.json.encode({
        "choices": [{"index": 0, "delta": {}, "finish_reason": finish}],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]},
    })  # fmt: skip
    return answered(piece + b"|" + end + b"|[DONE]")


def row_of(reply: Reply, **known: object):
    """Return the row of a reply."""
    return sent(not_sent(), reply, reply.fold, start=100.0, pod="p", **known)


PROSE = " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        pytest.param(said(PROSE), None, id="an answer"),
        pytest.param(said("again " * 40), "loop", id="a loop"),
        pytest.param(said("", finish="stop"), "empty", id="nothing"),
        pytest.param(said("yes", usage=(101, 1)), "overflow", id="cut by the window"),
    ],
)
def test_what_is_wrong_with_an_answer_is_in_its_row(reply, kind):
    """By its text, and by how it ended; the turn asked for two tokens at least."""
    assert row_of(reply).degeneration == kind


def test_an_answer_that_says_its_prompt_back_is_found_and_the_prompt_is_made_for_it_alone():
    """A short answer needs no prompt."""
    made = []

    def prompt():
        made.append(1)
        return f"please repeat {PROSE}"

    assert row_of(said(PROSE), prompt=prompt).degeneration == "echo"
    assert row_of(said("yes"), prompt=prompt).degeneration is None
    assert made == [1]


def test_a_refusal_for_length_is_an_overflow_and_another_one_is_not():
    """By the server's words."""
    reply = Reply(StreamFold(), sent=107.0, end=108.0, status=400)
    reply.body = b'{"error":{"message":"This model\'s maximum context length is 8 tokens."}}'
    row = row_of(reply)

    assert (row.error, row.degeneration, row.context) == ("http", "overflow", "over")
    reply.body = b'{"error":{"message":"no such model"}}'
    assert row_of(reply).degeneration is None


@pytest.mark.parametrize(
    ("window", "ratio", "context"),
    [
        pytest.param(1000, 0.141, "0-25", id="little"),
        pytest.param(150, 0.94, "90-100", id="nearly all"),
        pytest.param(None, None, "unknown", id="a server that does not say"),
    ],
)
def test_the_share_of_the_window_is_of_prompt_and_answer(window, ratio, context):
    """As `usage` counts them."""
    row = row_of(said(PROSE), window=window)

    assert (row.context_ratio, row.context, row.judged) == (ratio, context, True)


def test_a_call_of_a_tool_is_no_empty_answer():
    """It has no text, and is one."""
    call = b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a"}]}}]}'
    end = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    row = row_of(answered(call + b"|" + end + b"|[DONE]"))

    assert (row.first_token_s is None, row.degeneration) == (False, None)
