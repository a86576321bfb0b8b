"""OpenAI's own client, which knows what it may ask again and what it may not."""

from __future__ import annotations

import json

import pytest
from router.fakes import House, run, until


def client(house: House, key: str = "key-of-ann"):
    """Return a client of a router."""
    openai = pytest.importorskip("openai")
    return openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0)


async def completes(call):
    """Answer a chat."""
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    await call.answer(json.dumps(body).encode(), 200, b"content-type: application/json")


MESSAGES = [{"role": "user", "content": "hi"}]


def test_errors_are_those_that_the_client_knows(tmp_path):
    """Each is raised as its own class, with the router's sentence; and answers are answers."""
    openai = pytest.importorskip("openai")
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n  - {name: ann, key: key-of-ann, per_minute: 20}\n")

    async def case():
        async with House(completes, keys_file=keys, probe_every_s=0.005) as house:
            house.pods[0].models = ["m"]
            await until(lambda: house.router.fleet.models.of(house.pods[0].name))
            async with client(house) as ann, client(house, "wrong-key") as stranger:
                assert [model.id async for model in ann.models.list()] == ["m"]
                answer = await ann.chat.completions.create(model="m", messages=MESSAGES)
                assert answer.choices[0].message.content == "hello"
                for who, model, error, words in (
                    (stranger, "m", openai.AuthenticationError, "Expected an API key"),
                    (ann, "q", openai.NotFoundError, "The model `q` does not exist."),
                ):
                    with pytest.raises(error, match=words):
                        await who.chat.completions.create(model=model, messages=MESSAGES)
                await ann.chat.completions.create(model="m", messages=MESSAGES)
                with pytest.raises(openai.RateLimitError, match="requests a minute") as caught:
                    await ann.chat.completions.create(model="m", messages=MESSAGES)
                assert caught.value.response.headers["retry-after"] == "3"

    run(case)
