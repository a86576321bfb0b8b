"""Anthropic's messages at a pod; `test_server` plays what was recorded of a real one."""

from __future__ import annotations

import gzip
import json

import pytest
from fakes_pod import make_config, running_pod, tokenizer
from tool_templates import ALL
from vllm_chats import CHAT, RECORDED, model_of
from wire import connected, scene

from kvbench.clock import WallClock
from kvbench.pod.errors import ApiError
from kvbench.pod.messages import MESSAGES, parse_count, parse_messages
from kvbench.pod.prompts import encode
from kvbench.pod.request import parse_chat
from kvbench.pod.responses import RESPONSES, parse_response

ASKED = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}


def recorded(path):
    """Yield what a real vLLM made of bodies: template, body, and ids, None where it refused.

    Not under the template that loops over contents, to which this pod hands one text.
    """
    with gzip.open(RECORDED, "rt") as lines:
        for name, where, body, ids in map(json.loads, lines):
            if where == path and name != "parted":
                yield name, body, ids


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES, CHAT])
def test_a_prompt_has_the_tokens_that_a_real_vllm_makes_of_it(path):
    """Tools, calls, thoughts, answers, over four templates; what it refuses is refused."""
    models = {name: model_of(template).models["m"].tokenizer for name, template in ALL.items()}
    count = 0
    for name, body, ids in recorded(path):
        of = models[name]
        try:
            if path == MESSAGES:
                asked = {"max_tokens": 1, **body}
                ask = parse_messages(asked, "m", system_first=of.system_first, takes_tools=True)
            elif path == RESPONSES:
                ask, _ = parse_response(body, "m")
            else:
                ask = parse_chat(body, "m", takes_tools=True)
            (made,) = encode(ask, of, 100_000)
        except ApiError:
            made = None
        assert made == ids, body
        count += ids is not None
    assert count > 200


def events(raw: bytes) -> list[tuple[str, dict]]:
    """Return the events of a stream."""
    found = []
    for event in raw.decode().removesuffix("\n\n").split("\n\n"):
        kind, data = event.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@scene
async def test_an_answer_is_the_same_in_one_piece_and_as_events():
    """What was said, why it ended, and what it used."""
    async with running_pod() as pod:
        long = {**ASKED, "system": "words " * 60}
        await pod.post(MESSAGES, long)
        whole = json.loads((await pod.post(MESSAGES, long)).body)
        told = events((await pod.post(MESSAGES, {**long, "stream": True})).body)
    assert [kind for kind, _ in told] == [
        "message_start", "content_block_start", *["content_block_delta"] * 4,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    text = "".join(event["delta"]["text"] for kind, event in told if kind == "content_block_delta")
    assert whole["content"] == [{"type": "text", "text": text}]
    assert told[-2][1]["usage"] == whole["usage"]
    assert told[-2][1]["delta"]["stop_reason"] == whole["stop_reason"] == "max_tokens"
    usage = whole["usage"]
    assert usage["cache_read_input_tokens"] > 32
    assert usage["input_tokens"] < 32
    first = told[0][1]["message"]["usage"]["input_tokens"]
    assert first == usage["input_tokens"] + usage["cache_read_input_tokens"]


@scene
async def test_an_answer_says_what_ended_it():
    """A text that was asked for, or itself."""
    async with running_pod() as pod:
        words = json.loads((await pod.post(MESSAGES, ASKED)).body)["content"][0]["text"].split()
        stopped = {**ASKED, "stop_sequences": [f" {words[2]}"]}
        whole = json.loads((await pod.post(MESSAGES, stopped)).body)
        told = events((await pod.post(MESSAGES, {**stopped, "stream": True})).body)
        ended = {**ASKED, "max_tokens": 900}
        by_itself = json.loads((await pod.post(MESSAGES, ended)).body)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", f" {words[2]}")
    assert told[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": f" {words[2]}"}
    assert by_itself["stop_reason"] == "end_turn"
    assert "stop_sequence" not in by_itself


@scene
async def test_what_was_cached_is_told_only_where_it_is_to_be():
    """Then it is not taken off the input."""
    async with running_pod(make_config(tells_cached=False)) as pod:
        usage = json.loads((await pod.post(MESSAGES, ASKED)).body)["usage"]
    assert sorted(usage) == ["input_tokens", "output_tokens"]


@scene
async def test_a_stream_begins_with_its_first_token():
    """And not before."""
    async with running_pod(make_config(step_s=0.05)) as pod, connected(pod.port) as client:
        now = WallClock().now
        sent = now()
        client.post(MESSAGES, json.dumps({**ASKED, "stream": True}).encode())
        await client.head()
        assert b"message_start" in await client.chunk()
        assert now() - sent >= 0.05


def test_tokens_are_counted_without_an_answer():
    """Of the same conversation as an answer would have."""
    model, conversation = parse_count(ASKED, "tiny", system_first=False, takes_tools=False)
    ask = parse_messages(ASKED, "tiny", system_first=False, takes_tools=False)

    assert model == "tiny"
    assert conversation == ask.conversation
    assert len(encode(ask, tokenizer(), 100)[0]) > 5
