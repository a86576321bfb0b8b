"""KV events over sockets: published in order, replayed on demand, lost when ordered."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio
from fakes_pod import NOW, RunningPod, running_pod
from wire import scene

from kvbench.errors import InputError, TargetError
from kvbench.kvcache.events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockStored,
    Message,
    decode_batch,
    decode_frames,
    replay_request,
)
from kvbench.pod.publisher import EventsConfig, Publisher, binds, parse_events_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC = "kv@pod@tiny"


@asynccontextmanager
async def publishing(
    form: str = "map", faults: tuple[str, ...] = ()
) -> AsyncIterator[tuple[RunningPod, Publisher, zmq.asyncio.Context]]:
    """Run a pod that publishes, for the length of a block."""
    config = EventsConfig(
        enable_kv_cache_events=True,
        endpoint="tcp://127.0.0.1:*",
        replay_endpoint="tcp://127.0.0.1:*",
        topic=TOPIC,
        buffer_steps=100,
    )
    publisher = Publisher(config, form, lambda: NOW)
    context = zmq.asyncio.Context()
    try:
        async with running_pod(publisher=publisher, faults=faults) as pod:
            yield pod, publisher, context
    finally:
        context.destroy(linger=0)


async def replayed(publisher: Publisher, context: zmq.asyncio.Context, start: int) -> list[Message]:
    """Return what a replay from `start` brings."""
    dealer = context.socket(zmq.DEALER)
    dealer.connect(publisher.replay_endpoint)
    await dealer.send_multipart(replay_request(start))
    messages: list[Message] = []
    while not messages or messages[-1].seq != END_OF_REPLAY:
        messages.append(decode_frames(await dealer.recv_multipart()))
    return messages[:-1]


async def subscribed(publisher: Publisher, context: zmq.asyncio.Context, pod: RunningPod):
    """Return a subscriber that is known to be connected: it has seen a batch."""
    subscriber = context.socket(zmq.SUB)
    subscriber.connect(publisher.endpoint)
    subscriber.subscribe(TOPIC.encode())
    for attempt in range(100):
        await pod.chat(f"number {attempt} " * 20)
        try:
            return subscriber, await asyncio.wait_for(subscriber.recv_multipart(), 0.05)
        except TimeoutError:
            continue
    pytest.fail("nothing was published")


@pytest.mark.parametrize("form", ["map", "array"])
@scene
async def test_blocks_are_published_as_they_are_cached(form: str):
    """In either encoding, numbered without a gap, with the tokens of each block."""
    async with publishing(form=form) as (pod, publisher, context):
        subscriber, frames = await subscribed(publisher, context, pod)
        before = decode_frames(frames)
        assert before.topic == TOPIC
        text = "hello there " * 30
        whole = await pod.chat(text, max_tokens=1)
        while True:
            message = decode_frames(await subscriber.recv_multipart())
            assert message.seq == before.seq + 1
            before = message
            batch = decode_batch(message.payload)
            stored = batch.events[0]
            assert isinstance(stored, BlockStored)
            if len(stored.token_ids) == whole["usage"]["prompt_tokens"] // 32 * 32:
                break
        assert batch.ts == NOW
        assert batch.data_parallel_rank == 0
        assert stored.block_size == 32
        assert stored.parent_block_hash is None
        assert stored.medium == "GPU"


@scene
async def test_what_was_published_can_be_replayed():
    """From any number on, ended by a marker; a restart begins at 0 with nothing kept."""
    async with publishing() as (pod, publisher, context):
        for number in range(4):
            await pod.chat(f"number {number} " * 20)
        assert publisher.published == 4
        messages = await replayed(publisher, context, 1)
        assert [message.seq for message in messages] == [1, 2, 3]
        pod.pod.restart()
        assert await replayed(publisher, context, 0) == []
        await pod.chat("number 0 " * 20)
        assert [m.seq for m in await replayed(publisher, context, 0)] == [0]


@scene
async def test_a_reset_is_published_with_the_next_step():
    """As in vLLM, an idle engine keeps it to itself."""
    async with publishing() as (pod, publisher, context):
        await pod.chat("hello there " * 20)
        await pod.post("/reset_prefix_cache", b"")
        assert publisher.published == 1
        await pod.chat("hello there " * 20)
        last = (await replayed(publisher, context, 0))[-1]
        events = decode_batch(last.payload).events
        assert isinstance(events[0], AllBlocksCleared)
        assert isinstance(events[1], BlockStored)


@scene
async def test_lost_batches_are_numbered_and_can_be_replayed():
    """A subscriber sees the gap and asks for them."""
    async with publishing(faults=("drop-events",)) as (pod, publisher, context):
        subscriber = context.socket(zmq.SUB)
        subscriber.connect(publisher.endpoint)
        subscriber.subscribe(b"")
        for number in range(3):
            await pod.chat(f"number {number} " * 20)
        assert len(await replayed(publisher, context, 0)) == 3
        with pytest.raises(zmq.Again):
            await subscriber.recv_multipart(zmq.NOBLOCK)


@scene
async def test_a_pod_without_traffic_says_nothing():
    """And a request that caches no block publishes no batch."""
    async with publishing() as (pod, publisher, context):
        await pod.chat("short")
        assert publisher.published == 0
        assert await replayed(publisher, context, 0) == []


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://127.0.0.1:*", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/x", True),
        ("inproc://x", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://router:5557", False),
    ],
)
def test_an_endpoint_with_a_star_is_bound_and_any_other_connected_to(endpoint: str, bound: bool):
    """VLLM's rule, which surprises everybody once."""
    assert binds(endpoint) is bound


def test_the_settings_are_vllms_json():
    """With its defaults; nothing is published unless asked for."""
    config = parse_events_config('{"enable_kv_cache_events": true, "topic": "t"}')
    assert config.publishes
    assert (config.endpoint, config.topic) == ("tcp://*:5557", "t")
    assert not parse_events_config(None).publishes
    assert not parse_events_config(
        '{"enable_kv_cache_events": true, "publisher": "null"}'
    ).publishes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON: Invalid JSON"),
        ('{"enpoint": "x"}', "enpoint: Extra inputs"),
        ('{"buffer_steps": 0}', "buffer_steps: Input should be greater"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, message: str):
    """With the flag, the key and an example."""
    with pytest.raises(InputError, match=f"--kv-events-config: {message}") as raised:
        parse_events_config(text)
    assert raised.value.hint


@scene
async def test_an_endpoint_that_cannot_be_had_is_an_error():
    """It names the endpoint."""
    config = EventsConfig(enable_kv_cache_events=True, endpoint="tcp://nowhere.invalid:*")
    with pytest.raises(TargetError, match="cannot open tcp://nowhere"):
        Publisher(config, "map", lambda: NOW)
