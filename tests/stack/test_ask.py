"""One question: what is sent, when its answer came, and what is said when there is none."""

import asyncio

import fakes_target
import pytest
from fakes_target import END, HEAD, chunk, event, plain, usage

from kvbench.clock import WallClock
from kvbench.errors import TargetError
from kvbench.stack.ask import Asker


def completion(text, finish=None):
    """Return a chunk of a completion's stream."""
    return {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def asked(script, prompt=(5, 6, 7), max_tokens=2):
    """Ask a server that follows `script`; return the answer, and what it was asked."""

    async def case():
        """Ask, while the server is there."""
        async with fakes_target.ScriptedTarget(script) as target:
            asker = Asker(target.url + "/base", "tiny", "salt-1", WallClock())
            return await asker.ask(prompt, max_tokens), target.asked

    return asyncio.run(case())


def test_a_prompt_is_sent_as_token_ids_with_a_salt_of_its_own(monkeypatch):
    """Greedy, streamed, of exactly so many tokens, with usage, and with the key of the user."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    _, (request,) = asked(lambda _: fakes_target.answer(2))

    assert request.head.startswith(b"POST /base/v1/completions HTTP/1.1")
    assert request.header("authorization") == "Bearer secret"
    assert request.json == {
        "model": "tiny",
        "prompt": [5, 6, 7],
        "max_tokens": 2,
        "ignore_eos": True,
        "temperature": 0,
        "cache_salt": "salt-1",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_first_token_counts_from_when_the_request_had_been_sent():
    """At least what the server waited, and all tokens that it said."""
    answer, _ = asked(lambda _: fakes_target.answer(3, first=0.05, cached=16))

    assert answer.ttft >= 0.05
    assert answer.fold.usage.cached_tokens == 16
    assert answer.fold.usage.completion_tokens == 3
    assert answer.trouble is None


def test_a_first_token_without_text_counts_when_its_chunk_comes():
    """Half of a character: a chunk, and nothing in it."""
    last = chunk(event(completion("", "length")) + event(usage(3, 1, 0)) + event(b"[DONE]")) + END
    answer, _ = asked(lambda _: [HEAD, 0.05, last])

    assert answer.fold.first_token is None
    assert answer.ttft >= 0.05


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(
            plain(400, b'{"error": {"message": "too long"}}'),
            "answered 400: too long",
            id="refused",
        ),
        pytest.param(plain(502, b"<html>", "text/html"), "answered 502: <html>", id="a proxy"),
        pytest.param(
            [HEAD, chunk(event({"error": {"message": "out of memory"}})), END],
            "answered with an error: out of memory",
            id="an error in the stream",
        ),
        pytest.param([HEAD, chunk(event(completion("a"))), END], "cut its answer off", id="cut"),
        pytest.param(
            [HEAD, chunk(event(completion("a"))), fakes_target.CLOSE],
            "cut its answer off",
            id="gone",
        ),
        pytest.param([b"SSH-2.0\r\n\r\n"], "does not speak HTTP/1.1", id="another protocol"),
        pytest.param([fakes_target.CUT], "does not answer: ", id="a reset"),
    ],
)
def test_an_answer_that_is_none_is_the_targets_fault(script, message):
    """With the server's own words where it had some."""
    with pytest.raises(TargetError) as caught:
        asked(lambda _: script)

    assert message in caught.value.message


def test_nobody_there_is_said_in_one_sentence():
    """Port 1 of loopback: refused."""
    asker = Asker("http://127.0.0.1:1", "tiny", "salt", WallClock())

    with pytest.raises(TargetError, match=r"http://127\.0\.0\.1:1 does not answer: "):
        asyncio.run(asker.ask([1], 1))
