"""What a target is asked before a run, and how its answers are read."""

import asyncio
import json

import fakes_target
import pytest
from fakes_target import plain

from kvbench.stack.preflight import PodSays
from kvbench.stack.probe import probe
from kvbench.stack.target import Target
from kvbench.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load()
INFO = 'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{}"}} 1.0\n'


class Pod:
    """A server of which a test says what it answers; it keeps the bodies it was sent.

    Attributes:
        usages: The usage of each answer, in order.
    """

    def __init__(self, *usages, metrics=None, tokenizes=True, more_tokens=(), status=200):
        self.bodies = []
        self._usages = list(usages)
        self._metrics = metrics
        self._tokenizes = tokenizes
        self._more_tokens = more_tokens
        self._status = status

    def __call__(self, asked):
        """Answer a request."""
        path = asked.head.split()[1].decode()
        if path == "/metrics" and self._metrics is not None:
            return plain(200, self._metrics.encode(), "text/plain")
        if path == "/tokenize" and self._tokenizes:
            return plain(200, json.dumps({"tokens": self._tokens(asked.json)}).encode())
        if path.startswith("/v1/"):
            self.bodies.append((path, asked.json))
            if self._status != 200:
                return plain(self._status, b'{"error":{"message":"no chat template"}}')
            usage = self._usages.pop(0)
            return plain(200, json.dumps({"choices": [], "usage": usage}).encode())
        return plain(404, b"{}")

    def _tokens(self, body):
        messages = body.get("messages")
        ids = TOKENIZER.encode_chat(messages) if messages else TOKENIZER.encode(body["prompt"])
        return [*ids, *self._more_tokens]

    def probed(self, api="chat", **more):
        """Return what the probe sees of it."""

        async def case():
            """Probe, while the pod is there."""
            async with fakes_target.ScriptedTarget(self) as server:
                target = Target(
                    url=server.url, model="m", root=None, max_model_len=8192,
                    pods={"pod-1": server.url}, block_size=16, routed=False,
                )  # fmt: skip
                return await asyncio.to_thread(
                    probe, target, TOKENIZER, api, name="probe-1", **more
                )

        return asyncio.run(case())


def usage(cached):
    """Return a usage of 48 prompt tokens; `cached` None: it does not say."""
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": 48, "completion_tokens": 1, "prompt_tokens_details": details}


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_pod_is_asked_the_same_twice_and_the_second_answer_counts(api):
    """On the endpoint of the run, one token each, with words of more than two blocks."""
    pod = Pod(usage(0), usage(32), metrics=INFO.format("True"))

    seen = pod.probed(api)

    assert seen.pods == [PodSays("pod-1", caching=True, cached_tokens=32, prompt_tokens=48)]
    (path, first), (_, second) = pod.bodies
    assert path == ("/v1/chat/completions" if api == "chat" else "/v1/completions")
    assert first == second
    assert (first["model"], first["max_tokens"], first["cache_salt"]) == ("m", 1, "probe-1")
    prompt = first["prompt"] if api == "completions" else first["messages"][0]["content"]
    assert len(TOKENIZER.encode(prompt)) == 40
    assert (seen.window, seen.tokenizes, list(seen.differences)) == (8192, True, [])


def test_a_cached_count_that_is_not_told_is_not_zero():
    """Metrics that say nothing leave the switch unknown."""
    (said,) = Pod(usage(None), usage(None)).probed().pods

    assert (said.told, said.caching, said.trouble) == (False, None, None)


def test_a_pod_says_in_its_metrics_that_caching_is_off():
    """Whatever its usage says."""
    (said,) = Pod(usage(0), usage(0), metrics=INFO.format("False")).probed().pods

    assert said.caching is False


def test_an_error_is_kept_in_the_servers_own_words():
    """The status and the sentence."""
    (said,) = Pod(status=400).probed().pods

    assert said.trouble == "400 no chat template"


def test_a_run_without_salt_sends_none():
    """Some servers refuse a field they do not know."""
    pod = Pod(usage(0), usage(32))

    pod.probed(salted=False)

    assert "cache_salt" not in pod.bodies[0][1]


def test_a_tokenizer_that_differs_is_told_by_its_first_difference():
    """Token by token, not by count."""
    (difference,) = Pod(usage(0), usage(32), more_tokens=(5,)).probed().differences

    assert difference.startswith("the tokenizer of the server is another one than ours (")


def test_a_target_without_tokenize_is_not_compared():
    """That is unknown, not equal."""
    assert not Pod(usage(0), usage(32), tokenizes=False).probed().tokenizes
