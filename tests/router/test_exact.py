"""Exact routing, whole: simulated pods that publish, a router that hears them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_pod import NOW, make_config, running_pod
from router.fakes import CHAT, chat, run
from router.fakes import ask as ask_plainly
from tool_templates import ALL

from kvbench.clock import WallClock
from kvbench.metrics.router import METRICS
from kvbench.pod.publisher import EventsConfig, Publisher
from kvbench.router.model_tokens import FORMS
from kvbench.router.service import Router, Settings
from kvbench.text.tokenizer import SHIPPED, Tokenizer

FAMILIES = (
    "index_blocks", "events_trust", "events_batches_total", "events_lag", "predictions",
    "regret", "tokens_known", "shadow",
)  # fmt: skip


async def ask(url, method, target, body=b"", *headers):
    """Ask over a connection of its own; what is sent is JSON."""
    kind = ("content-type: application/json",) if body else ()
    return await ask_plainly(url, method, target, body, *headers, *kind)


def agent_turns(count):
    """Yield an agent's requests: in each turn a call more, and what was answered."""
    messages = [
        {"role": "system", "content": "You may read files. " * 10},
        {"role": "user", "content": "What is in them? " * 20},
    ]
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    for turn in range(count):
        yield {"model": "tiny", "max_tokens": 1, "messages": messages, "tools": [tool]}
        function = {"name": "read", "arguments": f'{{"path": "/{turn}", "lines": [1, 2.50]}}'}
        call = {"id": f"call{turn:05}", "type": "function", "function": function}
        messages = [
            *messages,
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"{turn} " * 40},
        ]


def message_turns(count):
    """Yield the same in Anthropic's form, as Claude Code sends it."""
    messages = [{"role": "user", "content": "What is in them? " * 20}]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    for turn in range(count):
        bill = {"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"}
        system = [bill, {"type": "text", "text": "You may read files. " * 10}]
        body = {"model": "tiny", "max_tokens": 1, "stream": turn == 1}
        yield body | {"messages": messages, "tools": tools, "system": system}
        call = {
            "type": "tool_use",
            "id": f"call{turn:05}",
            "name": "read",
            "input": {"path": f"/{turn}"},
        }
        answer = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{turn} " * 40}
        messages = [
            *messages,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
            {"role": "user", "content": [answer, {"type": "text", "text": "go on"}]},
        ]


def response_turns(count):
    """Yield the same as responses, as Codex sends it."""
    items = [{"role": "user", "content": [{"type": "input_text", "text": "What is there? " * 20}]}]
    tools = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
    for turn in range(count):
        body = {"model": "tiny", "max_output_tokens": 1, "stream": turn == 1, "tools": tools}
        yield body | {"input": items, "instructions": "You may read files. " * 10}
        call = {"type": "function_call", "name": "read", "arguments": "{}"}
        name = {"call_id": f"call{turn:05}"}
        items = [
            *items,
            {"type": "reasoning", "summary": [], "content": [THOUGHT]},
            {**call, **name},
            {"type": "function_call_output", **name, "output": f"{turn} " * 40},
        ]


THOUGHT = {"type": "reasoning_text", "text": "hm"}


def used(body: bytes) -> tuple[int, int]:
    """Return the prompt's tokens, and how many of them were cached, whatever API says it."""
    usage, _ = json.JSONDecoder().raw_decode(body.rpartition(b'"usage":')[2].decode())
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if details is not None:
        return usage.get("prompt_tokens", usage.get("input_tokens")), details["cached_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached + usage["cache_creation_input_tokens"], cached


class House(contextlib.AsyncExitStack):
    """Simulated pods that publish KV events, and a router that follows them."""

    def __init__(self, pods=2, faults=(), *, replay=True, others=(), pod=(), **settings):
        super().__init__()
        self.count, self.faults, self.replay = pods, faults, replay
        self.pod = dict(pod)  # what its pods are besides
        self.others = dict(others)  # what other models' pods are, by the model's name
        self.settings = Settings(**{"policy": "prefix_precise", "probe_every_s": 0.01} | settings)
        self.router: Router
        self.url = ""
        self.pods, self.publishers = [], []

    async def __aenter__(self):
        """Start everything; wait until each pod is known exactly, and its tokens."""
        await super().__aenter__()
        try:
            return await self.start()
        except BaseException:
            await self.aclose()
            raise

    async def start(self):
        """Start everything."""
        texts = []
        names = [*self.others, *["tiny"] * self.count]
        for name in names:
            config = EventsConfig(
                enable_kv_cache_events=True,
                endpoint="tcp://127.0.0.1:*",
                replay_endpoint="tcp://127.0.0.1:*",
            )
            publisher = Publisher(config, "map", lambda: NOW)
            self.publishers.append(publisher)
            engine = {"max_model_len": 8192, "num_gpu_blocks": 400, **self.others.get(name, {})}
            pod = await self.enter_async_context(
                running_pod(
                    replace(make_config(**engine), model=name, **self.pod),
                    publisher=publisher,
                    faults=self.faults,
                )
            )
            self.pods.append(pod)
            replay = f",replay={publisher.replay_endpoint}" if self.replay else ""
            texts.append(f"{pod.url},events={publisher.endpoint}{replay}")
        self.router = Router(texts, self.settings, WallClock(), lambda: NOW + 0.5)
        self.url = await self.router.start("127.0.0.1", 0)
        self.push_async_callback(self.router.stop, 0.5)
        self.ledger = self.router.fleet.index.ledger
        await self.until(lambda: set(names) == set(self.router.fleet.tokens.models))
        await self.until(lambda: len(self.router.fleet.policies.sizes) == len(names))
        return self

    async def until(self, holds):
        """Wait until something holds."""
        while not holds():  # noqa: ASYNC110 - the product has no event for this
            await asyncio.sleep(0.002)

    def trusts(self):
        """Return how far each pod is believed."""
        return [self.ledger.trust(name).level for name in self.ledger.streams]

    async def ask(self, body, *headers, path=CHAT):
        """Ask the router; return the pod, the predicted and the delivered cached tokens."""
        heard = sum(s.batches for streams in self.ledger.streams.values() for s in streams)
        reply = await ask(self.url, "POST", path, body, *headers)
        assert reply.status == 200, reply.body
        tokens, cached = used(reply.body)
        if tokens - cached >= 32:
            await self.until(
                lambda: (
                    heard
                    < sum(s.batches for streams in self.ledger.streams.values() for s in streams)
                )
            )
        return (
            reply.headers["x-kvbench-pod"],
            int(reply.headers["x-kvbench-predicted-tokens"]),
            cached,
        )

    async def decisions(self, path="/decisions"):
        """Return the decisions that the router shows."""
        return (await ask(self.url, "GET", path)).json()["decisions"]


def conversation(turns, word="river ", **fields):
    """Return the body of a conversation."""
    texts = [f"{number} " + word * 60 for number in range(2 * turns)]
    return chat(*texts, **{"model": "tiny", "max_tokens": 2, **fields})


def test_what_is_predicted_is_what_is_delivered_turn_by_turn():
    """On the pod that has it; the first is routed before any block is known."""

    async def case():
        async with House() as house:
            pod, *_ = await house.ask(conversation(1))
            for turn in range(2, 5):
                where, predicted, cached = await house.ask(conversation(turn))
                assert (where, predicted) == (pod, cached)
                assert cached > 0
            pods = (await ask(house.url, "GET", "/pods")).json()["pods"]
            (known,) = [one["cache"] for one in pods if one["name"] == pod]
            assert known["trust"] == "exact"
            assert known["reason"].startswith("every batch")
            assert known["blocks"] > 0
            entry = (await house.decisions())[0]
            assert (entry["exact"], entry["cause"], entry["regret_s"]) == (True, "none", 0.0)
            assert [c["trust"] for c in entry["candidates"]] == ["exact", "exact"]
            assert entry["candidates"][0]["held_tokens"] == entry["cached_tokens"]

    run(case)


def test_a_prompt_that_its_pod_refused_is_not_predicted_there():
    """Not even for a moment: the promise of its blocks ends with the refusal."""

    async def case():
        async with House(1, policy="prefix_cost") as house:
            wrong = await ask(house.url, "POST", CHAT, conversation(2, max_tokens=-1))
            assert wrong.status == 400
            _, predicted, cached = await house.ask(conversation(2))
            assert predicted == cached == 0

    run(case)


@pytest.mark.parametrize("policy", ["round_robin", "prefix_estimate"])
def test_what_is_predicted_is_the_indexes_word_whatever_the_policy_believes(policy):
    """A policy without an index chooses as it does; the router knows better what that brings."""

    async def case():
        async with House(policy=policy) as house:
            await house.ask(conversation(1))
            for turn in range(2, 6):
                _, predicted, cached = await house.ask(conversation(turn))
                assert predicted == cached
            assert {entry["cause"] for entry in (await house.decisions())[:4]} == {"none"}

    run(case)


@pytest.mark.parametrize("stream", [False, True])
def test_long_prompts_are_tokenised_off_the_loop_and_come_out_the_same(stream):
    """More than 4,096 characters at once."""

    async def case():
        async with House(1) as house:
            await house.ask(conversation(1))
            body = conversation(2, word="stone bridge ", stream=stream, n=1)
            if stream:
                reply = await ask(house.url, "POST", CHAT, body)
                assert reply.status == 200
            else:
                await house.ask(body)
            _, predicted, cached = await house.ask(conversation(2, word="stone bridge "))
            assert predicted == cached > 100

    run(case)


def test_each_model_has_blocks_of_its_own_size():
    """Whichever pod has told its own first."""

    async def case():
        async with House(1, others={"other": {"block_size": 64}}) as house:
            for model in ("other", "tiny"):
                for turn in range(1, 4):
                    body = conversation(turn, model=model)
                    where, predicted, cached = await house.ask(body)
                    assert predicted == cached
                assert cached > 100
                entry = (await house.decisions())[0]
                assert (entry["pod"], entry["exact"], entry["cause"]) == (where, True, "none")

    run(case)


def test_texts_and_token_ids_are_matched_too():
    """The same tokens, asked for as text and as ids, share their blocks."""

    async def case():
        async with House(1) as house:
            text = "the garden by the river " * 30
            body = {"model": "tiny", "prompt": text, "max_tokens": 1}
            await house.ask(json.dumps(body).encode(), path="/v1/completions")
            for _ in range(2):
                _, predicted, cached = await house.ask(
                    json.dumps(body).encode(), path="/v1/completions"
                )
                assert predicted == cached > 0
            model = house.router.fleet.tokens.models["tiny"]
            ids = model.tokenizer.encode(text, add_special_tokens=True)
            body["prompt"] = ids
            _, predicted, cached = await house.ask(
                json.dumps(body).encode(), path="/v1/completions"
            )
            assert predicted == cached > 0

    run(case)


@pytest.mark.parametrize(
    ("path", "turns"),
    [(CHAT, agent_turns), ("/v1/messages", message_turns), ("/v1/responses", response_turns)],
)
@pytest.mark.parametrize("template", sorted(ALL))
def test_a_chat_with_tools_is_foretold_turn_by_turn(tmp_path, template, path, turns):
    """Calls, answers to them, thoughts: what is predicted is delivered, and counted alike.

    In OpenAI's two forms and in Anthropic's.
    """
    shutil.copytree(Path(__file__).parent.parent / "pod" / "recorded" / "tiny", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(ALL[template])
    pod = {"tokenizer": Tokenizer.load(tmp_path / "model"), "takes_tools": True}

    async def case():
        async with House(1, pod=pod) as house:
            found = [await house.ask(json.dumps(body).encode(), path=path) for body in turns(4)]
            assert [predicted for _, predicted, _ in found] == [cached for *_, cached in found]
            assert all(cached > 0 for *_, cached in found[1:])
            decisions = await house.decisions()
            assert [one["exact"] for one in decisions] == [True, True, True, False]  # no event yet
            model = house.router.fleet.tokens.models["tiny"]
            trusts = [model.of(form) for form in FORMS]
            assert {trust.trouble for trust in trusts} == {None}
            assert max((one.checked, one.miscounted) for one in trusts) == (3, 0)

    run(case)


def test_salts_share_nothing():
    """A prompt that is cached under another salt is cold."""

    async def case():
        async with House(1) as house:
            await house.ask(conversation(1, cache_salt="a"))
            _, predicted, cached = await house.ask(conversation(1, cache_salt="b"))
            assert predicted == cached == 0
            _, predicted, cached = await house.ask(conversation(1, cache_salt="a"))
            assert predicted == cached > 0

    run(case)


def test_what_cannot_be_laid_out_is_routed_by_estimate():
    """Whatever the template might be told beside the messages; parts of text can be."""

    async def case():
        async with House(1) as house:
            await house.ask(conversation(1))
            parts = [{"type": "text", "text": "river " * 50}, {"type": "text", "text": "x"}]
            body = {"model": "tiny", "max_tokens": 1}
            body["messages"] = [{"role": "user", "content": parts}]
            for extra, exact in (({}, True), ({"documents": []}, False)):
                await house.ask(json.dumps(body | extra).encode())
                _, predicted, cached = await house.ask(json.dumps(body | extra).encode())
                assert (await house.decisions())[0]["exact"] is exact
                assert cached > 0
                assert predicted == cached or not exact

    run(case)


def test_a_reset_through_the_router_leaves_nothing_to_predict():
    """Every pod has emptied its cache."""

    async def case():
        async with House() as house:
            await house.ask(conversation(1))
            reply = await ask(house.url, "POST", "/reset_prefix_cache")
            assert reply.json() == {"success": True}
            _, predicted, cached = await house.ask(conversation(1))
            assert predicted == cached == 0
            _, predicted, cached = await house.ask(conversation(1))
            assert predicted == cached > 0

    run(case)


def test_a_pod_that_begins_anew_is_known_anew():
    """Its numbers begin at 0 again: what it held is forgotten, and what it stores is heard.

    It is restarted behind the router's back, which takes `/restart` for a control of one pod.
    """

    async def case():
        async with House(1) as house:
            await house.ask(conversation(1))
            await house.ask(conversation(2))
            (stream,) = next(iter(house.ledger.streams.values()))
            assert (await ask(house.url, "POST", "/restart")).status == 404
            await ask(house.pods[0].url, "POST", "/restart")
            _, _stale, cached = await house.ask(conversation(1))
            assert cached == 0
            await house.until(lambda: stream.feed.restarts == 1)
            await house.until(lambda: house.trusts() == ["exact"])
            for turn in (1, 2):
                _, predicted, cached = await house.ask(conversation(turn))
                assert predicted == cached > 0
            assert stream.feed.restarts == 1

    run(case)


def test_a_pod_that_began_anew_is_not_believed_to_hold_what_it_held():
    """Its metrics say so before it has stored anything; what it then stores is believed."""

    async def case():
        async with House(1) as house:
            await house.ask(conversation(1))
            await house.ask(conversation(2))
            ((name, pod),) = house.router.fleet.membership.pods.items()
            await house.until(lambda: pod.began > 0)
            assert house.ledger.holdings(name).blocks > 0
            house.pods[0].pod._utc = lambda: pod.began + 1
            await ask(house.pods[0].url, "POST", "/restart")
            await house.until(lambda: house.ledger.holdings(name).blocks == 0)
            _, predicted, cached = await house.ask(conversation(2))
            assert predicted == cached == 0
            await house.until(lambda: house.trusts() == ["exact"])
            for turn in (2, 3):
                _, predicted, cached = await house.ask(conversation(turn))
                assert predicted == cached > 0

    run(case)


def test_a_tokenizer_that_is_not_the_pods_is_named_and_given_up():
    """The pod's own /tokenize says so before the first request."""

    async def case():
        async with House(tokenizer=SHIPPED) as house:
            model = house.router.fleet.tokens.models["tiny"]
            assert "the tokenizer of the server is another one" in model.trouble
            await house.ask(conversation(1))
            await house.ask(conversation(2))
            assert not any(entry["exact"] for entry in await house.decisions())
            text = (await ask(house.url, "GET", "/metrics")).body.decode()
            assert 'kvbench_router_tokens_known{model="tiny"} 0.0' in text

    run(case)


def test_without_replay_a_pod_that_was_joined_late_is_estimated():
    """What it publishes is heard, but is not all."""

    async def case():
        async with House(1, replay=False) as house:
            await house.pods[0].chat("river " * 100)
            await house.until(lambda: house.trusts() != ["cold"])
            await house.ask(conversation(1))
            await house.ask(conversation(2))
            first, *_ = await house.decisions()
            trust = first["candidates"][0]["trust"]
            assert trust == house.trusts()[0]
            assert first["candidates"][0]["held_tokens"] is None or trust == "exact"

    run(case)


def test_what_events_predictions_and_shadows_count_moves():
    """The families that the router's other tests cannot move; each policy beside the other."""

    async def case():
        async with House(shadows=("round_robin", "prefix_cost")) as house:
            for turn in range(1, 4):
                await house.ask(conversation(turn, stream=False))
            text = (await ask(house.url, "GET", "/metrics")).body.decode()
            for metric in METRICS:
                if any(word in metric.name for word in FAMILIES):
                    family = metric.name + ("_count" if metric.kind == "histogram" else "")
                    samples = [line for line in text.splitlines() if line.startswith(family)]
                    assert any(float(line.rpartition(" ")[2]) > 0 for line in samples), family
            for policy, role in (("round_robin", "shadow"), ("prefix_precise", "serving")):
                assert f'cached_tokens_total{{policy="{policy}",role="{role}"}}' in text
            assert 'predictions_total{cause="none"}' in text
            assert "kvbench_router_events_lag_seconds" in text
            for stage in ("parse", "template", "tokenise", "hash", "look_up", "score"):
                assert f'stage_seconds_count{{stage="{stage}"}}' in text

    run(case)


def test_what_a_pod_refused_is_no_shadows_work():
    """Its tokens would drown those of all others."""

    async def case():
        async with House(shadows=("round_robin",)) as house:
            await house.ask(conversation(1, stream=False))
            before = shadow_lines((await ask(house.url, "GET", "/metrics")).body.decode())
            refused = await ask(house.url, "POST", CHAT, conversation(200, stream=False))
            after = shadow_lines((await ask(house.url, "GET", "/metrics")).body.decode())
            assert refused.status == 400
            assert len(before) > 6
            assert after == before

    run(case)


def shadow_lines(text):
    """Return what an exposition says of shadows, but when they began."""
    lines = (line for line in text.splitlines() if line.startswith("kvbench_router_shadow_"))
    return [line for line in lines if "_created" not in line]


def test_a_pod_that_comes_later_and_cannot_be_heard_is_estimated(caplog):
    """What people add while the router runs does not end it."""

    async def case():
        async with House(1) as house:
            router, other = house.router, "http://127.0.0.1:9"
            router.sources.roster.add(f"{other},events=tcp://nowhere.invalid*:5557")
            router.gather_pods()
            assert "127.0.0.1:9 is routed by estimate: KV events: cannot open" in caplog.text
            assert house.ledger.trust("127.0.0.1:9").level == "cold"
            assert "127.0.0.1:9" in router.fleet.membership.pods

    run(case)


def test_lost_events_are_asked_for_and_counted():
    """Every second batch never leaves the pod; its replay has it."""

    async def case():
        async with House(1, faults=("drop-events:rate=0.5",)) as house:
            for number in range(12):
                reply = await ask(house.url, "POST", CHAT, conversation(1, word=f"{number} river "))
                assert reply.status == 200
            (stream,) = next(iter(house.ledger.streams.values()))
            published = house.publishers[0].published
            await house.until(lambda: stream.batches == published or stream.feed.gaps)
            await house.until(lambda: house.trusts() == ["exact"])
            assert (stream.feed.lost, published > 6) == (0, True)

    run(case)


def test_decisions_are_written_and_can_be_asked_for(tmp_path):
    """By id, the last ones, and a line each in a file."""

    async def case():
        file = tmp_path / "decisions.jsonl"
        async with House(decision_log=file) as house:
            await house.ask(conversation(1), "x-request-id: first")
            await house.ask(conversation(2), "x-request-id: second")
            (entry,) = await house.decisions("/decisions/second")
            assert (entry["id"], entry["number"], entry["at"]) == ("second", 2, NOW + 0.5)
            assert entry["candidates"][0]["terms"].keys() == {"prefix", "queue", "memory"}
            assert [e["id"] for e in await house.decisions("/decisions?limit=1")] == ["second"]
            assert [e["id"] for e in await house.decisions("/decisions?since=1")] == ["second"]
            assert await house.decisions("/decisions?since=2") == []
            missing = await ask(house.url, "GET", "/decisions/third")
            assert missing.status == 404
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["id"] for line in lines] == ["first", "second"]
        assert lines[1] == entry

    run(case)
