"""OpenAI's responses at a pod; `test_server` plays what was recorded of a real one."""

from __future__ import annotations

import json

import openai
import pytest
from fakes_pod import make_config, running_pod
from wire import connected, scene

from kvbench.pod.errors import ApiError
from kvbench.pod.responses import RESPONSES, parse_response

ASKED = {"model": "tiny", "input": "hello", "max_output_tokens": 4}


@scene
async def test_the_openai_client_understands_it():
    """In one piece and streamed; what it streamed is what it says in the end."""
    async with (
        running_pod() as pod,
        openai.AsyncOpenAI(base_url=f"{pod.url}/v1", api_key="none", max_retries=0) as client,
    ):
        long = {**ASKED, "instructions": "words " * 60}
        await client.responses.create(**long)
        whole = await client.responses.create(**long)
        told = [event async for event in await client.responses.create(**long, stream=True)]
        text = "".join(one.delta for one in told if one.type == "response.output_text.delta")
        assert whole.output_text == text
        assert [one.sequence_number for one in told] == list(range(len(told)))
        last = told[-1].response
        assert (last.status, last.output_text) == ("incomplete", text)
        assert last.usage == whole.usage
        assert whole.usage.input_tokens_details.cached_tokens > 32
        ended = await client.responses.create(model="tiny", input="hello")
        assert (ended.status, ended.incomplete_details) == ("completed", None)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.retrieve(whole.id)


@scene
async def test_a_stream_begins_before_its_first_token():
    """A minute before, and repeats what it was asked."""
    async with running_pod(make_config(step_s=60.0)) as pod, connected(pod.port) as client:
        client.post(RESPONSES, json.dumps({**ASKED, "stream": True}).encode())
        await client.head()
        begun = await client.chunk()
        created, progress = begun.decode().removesuffix("\n\n").split("\n\n")
        assert created.startswith("event: response.created\ndata: ")
        assert progress.startswith("event: response.in_progress\ndata: ")
        response = json.loads(created.partition("data: ")[2])["response"]
        assert (response["status"], response["max_output_tokens"]) == ("in_progress", 4)
        assert response["usage"] is None


@scene
async def test_what_was_cached_is_always_told():
    """Whatever the pod was told to tell, as by a real one."""
    async with running_pod(make_config(tells_cached=False)) as pod:
        usage = json.loads((await pod.post(RESPONSES, ASKED)).body)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0


def test_an_item_of_another_kind_is_refused():
    """By its name."""
    with pytest.raises(ApiError, match="Unsupported input item type: magic"):
        parse_response({"input": [{"type": "magic"}]}, "tiny")
