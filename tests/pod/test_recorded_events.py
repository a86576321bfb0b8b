"""What a real vLLM sent over both sockets, and what ours sends: frame for frame, byte for byte."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio
from recorded_events import CONFIG, RecordedEvents, play, renamed
from wire import scene

from kvbench.kvcache.events import (
    AllBlocksCleared,
    EventBatch,
    decode_batch,
    decode_frames,
    encode_batch,
    replay_request,
)
from kvbench.kvcache.feed import Apply, EventFeed
from kvbench.kvcache.index import BlockIndex
from kvbench.pod.publisher import EventsConfig, Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROBE = encode_batch(EventBatch(0.0, (AllBlocksCleared(),), 0))


@pytest.fixture(scope="module")
def recorded() -> RecordedEvents:
    """Return the recording."""
    return RecordedEvents()


@asynccontextmanager
async def connection(
    topic: str, *, binds: bool
) -> AsyncIterator[tuple[Publisher, list[float], zmq.asyncio.Socket, zmq.asyncio.Socket]]:
    """Yield a publisher, what its clock says next, and a SUB and a DEALER that hear it."""
    context, times = zmq.asyncio.Context(), list[float]()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.subscribe(b"")
    endpoint = "tcp://127.0.0.1:*"
    if not binds:
        subscriber.bind(endpoint)
        endpoint = subscriber.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    config = EventsConfig(
        enable_kv_cache_events=True,
        endpoint=endpoint,
        replay_endpoint="tcp://127.0.0.1:*",
        topic=topic,
    )
    publisher = Publisher(config, "map", lambda: times.pop(0) if times else 0.0)
    try:
        if binds:
            subscriber.connect(publisher.endpoint)
        dealer.connect(publisher.replay_endpoint)
        heard = None
        while heard is None:  # until the subscription has arrived
            publisher.publish([AllBlocksCleared()])
            try:
                heard = await asyncio.wait_for(subscriber.recv_multipart(), 0.02)
            except TimeoutError:
                continue
        publisher.restart()
        yield publisher, times, subscriber, dealer
    finally:
        await publisher.close()
        context.destroy(linger=0)


@pytest.mark.parametrize("binds", [True, False], ids=["bound", "connected"])
@scene
async def test_a_consumer_hears_from_us_what_it_heard_from_the_real_engine(
    recorded: RecordedEvents, binds: bool
):
    """Topic, numbers, batches and their bytes; numbers begin at 0 after a restart."""
    steps = renamed(play(recorded.asked)[0], recorded.batches)
    topic = recorded.published[0][0].decode()
    async with connection(topic, binds=binds) as (publisher, times, subscriber, _):
        times += [batch.ts for batch in recorded.batches]
        for events in steps:
            publisher.publish(events)
        heard: list[list[bytes]] = []
        while len(heard) < len(steps):
            frames = await subscriber.recv_multipart()
            heard += [frames] if frames[2] != PROBE else []
    assert heard == recorded.published


@scene
async def test_a_replay_brings_what_it_brings_from_the_real_engine(recorded: RecordedEvents):
    """From any number on, with an empty frame before and the end marker behind."""
    steps = renamed(play(recorded.asked)[0], recorded.batches)
    topic = recorded.published[0][0].decode()
    async with connection(topic, binds=True) as (publisher, times, _, dealer):
        times += [batch.ts for batch in recorded.batches]
        for events in steps:
            publisher.publish(events)
        await dealer.send_multipart(replay_request(0)[1:])  # no empty frame: ignored, as in vLLM
        for start, expected in recorded.replayed.items():
            await dealer.send_multipart(replay_request(start))
            assert [await dealer.recv_multipart() for _ in expected] == expected
    assert sorted(recorded.replayed) == [0, 5]


@pytest.mark.parametrize("form", ["map", "array"])
def test_our_consumer_learns_from_the_real_engine_what_our_pool_holds(
    recorded: RecordedEvents, form: str
):
    """In either form, as vLLM sends it now and as it did before; in the map form to the byte."""
    feed, index = EventFeed(), BlockIndex(CONFIG.block_size)
    index.add("pod")
    for frames, batch in zip(recorded.published, recorded.batches, strict=True):
        payload = encode_batch(batch, form)
        assert (payload == frames[2]) is (form == "map")
        (order,) = feed.published(decode_frames([*frames[:2], payload]))
        assert order == Apply(payload)
        index.apply("pod", decode_batch(payload))
    _, engine = play(recorded.asked)
    assert index.contents("pod") == engine.pool.contents()
    assert feed.trust.level == "exact"
