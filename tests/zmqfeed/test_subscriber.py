"""The subscriber over real sockets: joins, gaps, restarts, pods that dial out."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from router.fakes import run
from zmq.constants import SocketOption, SocketType
from zmq.sugar.context import Context

from kvbench.errors import TargetError
from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import BlockStored, EventBatch, encode_batch, published_frames
from kvbench.kvcache.ledger import Ledger
from kvbench.pod.publisher import EventsConfig, Publisher
from kvbench.zmqfeed import subscriber as module
from kvbench.zmqfeed.sources import EventSource
from kvbench.zmqfeed.subscriber import Subscriber

NOW = 100.0


def block(number: int) -> BlockStored:
    """Return the event of a block that begins a prompt: two tokens, both its number."""
    return BlockStored((number,), None, (number, number), 2)


class Scene(contextlib.AsyncExitStack):
    """Publishers and a subscriber to them, all closed in the end."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(lambda: NOW)
        self.subscriber: Subscriber

    async def __aenter__(self):
        """Open the subscriber."""
        await super().__aenter__()
        self.subscriber = Subscriber(self.ledger)
        self.callback(self.subscriber.close)
        return self

    def publisher(self, endpoint="tcp://127.0.0.1:*", *, replay="tcp://127.0.0.1:*", **fields):
        """Return an open publisher."""
        config = EventsConfig(
            enable_kv_cache_events=True, endpoint=endpoint, replay_endpoint=replay, **fields
        )
        publisher = Publisher(config, "map", lambda: NOW)
        self.push_async_callback(publisher.close)
        return publisher

    def follow(self, pod, publisher, **fields):
        """Follow a publisher."""
        source = EventSource(publisher.endpoint, publisher.replay_endpoint, **fields)
        self.subscriber.follow(pod, source)

    async def until(self, pod, level, blocks):
        """Wait until a pod is trusted that far and holds so many blocks."""
        while (self.ledger.trust(pod).level, self.ledger.holdings(pod).blocks) != (level, blocks):
            self.subscriber.sweep()
            await asyncio.sleep(0.002)


def test_who_joins_late_learns_the_past_by_replay_and_then_hears_what_comes():
    """Nothing is published between the two."""

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            for number in range(5):
                publisher.publish([block(number)])
            scene.follow("a", publisher)
            await scene.until("a", "exact", 5)
            publisher.publish([block(7)])
            await scene.until("a", "exact", 6)
            assert scene.ledger.match(block_hashes([7, 7], 2), 2, ["a"]) == {"a": 1}

    run(case)


def test_a_publisher_at_an_address_of_ipv6_is_heard():
    """Where there is IPv6; a name is looked for in IPv4, in which vLLM listens."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")

    async def case():
        async with Scene() as scene:
            with Context() as context, context.socket(SocketType.PUB) as publisher:
                publisher.setsockopt(SocketOption.IPV6, 1)
                port = publisher.bind_to_random_port("tcp://[::1]")
                scene.subscriber.follow("a", EventSource(f"tcp://[::1]:{port}"))
                batch = encode_batch(EventBatch(NOW, (block(1),)))
                while scene.ledger.trust("a").level != "exact":
                    publisher.send_multipart(published_frames("", 0, batch))
                    await asyncio.sleep(0.002)
                assert scene.ledger.holdings("a").blocks == 1

    run(case)


def test_a_lost_batch_is_asked_for_when_the_next_shows_the_gap():
    """And one gap is counted."""

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            scene.follow("a", publisher)
            await scene.until("a", "exact", 0)
            publisher.publish([block(1)], lost=True)
            publisher.publish([block(2)])
            await scene.until("a", "exact", 2)
            assert scene.ledger.streams["a"][0].feed.gaps == 1

    run(case)


def test_a_loss_before_a_silence_is_found(monkeypatch):
    """No gap shows it: whoever is silent is asked."""
    monkeypatch.setattr(module, "_SILENCE_S", 0.02)

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            scene.follow("a", publisher)
            await scene.until("a", "exact", 0)
            publisher.publish([block(1)], lost=True)
            await scene.until("a", "exact", 1)
            assert scene.ledger.streams["a"][0].feed.gaps == 0

    run(case)


def test_without_a_replay_socket_a_late_joiner_is_degraded():
    """It knows what it has heard, and says that this is not all."""

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher(replay=None)
            publisher.publish([block(1)])
            scene.follow("a", publisher)
            number = 2
            while scene.ledger.trust("a").level == "cold":
                publisher.publish([block(number)])
                number += 1
                await asyncio.sleep(0.002)
            assert scene.ledger.trust("a").level == "degraded"
            assert "are lost" in scene.ledger.trust("a").reason

    run(case)


def test_a_replay_socket_that_does_not_answer_leaves_the_pod_cold(monkeypatch):
    """It is given up after a while, and asked again."""
    monkeypatch.setattr(module, "_REPLAY_IDLE_S", 0.02)

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher(replay=None)
            mute = scene.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = mute.getsockname()[1]
            source = EventSource(publisher.endpoint, f"tcp://127.0.0.1:{port}")
            scene.subscriber.follow("a", source)
            feed = scene.ledger.streams["a"][0].feed
            while not feed.replaying:  # noqa: ASYNC110 - the product has no event for this
                await asyncio.sleep(0.002)
            while feed.replaying:
                scene.subscriber.sweep()
                await asyncio.sleep(0.002)
            assert scene.ledger.trust("a").level == "cold"

    run(case)


def test_another_engine_at_the_same_endpoint_is_known_by_its_connection(tmp_path):
    """Even if its numbers go on where the old ones ended."""

    async def case():
        async with Scene() as scene:
            place = f"ipc://{tmp_path}/events"
            first = scene.publisher(place)
            first.publish([block(1)])
            scene.follow("a", first)
            await scene.until("a", "exact", 1)
            await first.close()
            await scene.until("a", "degraded", 1)
            second = scene.publisher(place, replay=first.replay_endpoint)
            for number in range(2, 5):
                second.publish([block(number)])
            await scene.until("a", "exact", 3)
            assert scene.ledger.match(block_hashes([1, 1], 2), 2, ["a"]) == {"a": 0}
            assert scene.ledger.streams["a"][0].feed.restarts == 1

    run(case)


def test_an_engine_that_begins_anew_is_known_by_its_numbers():
    """A restart behind the same socket."""

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            scene.follow("a", publisher)
            await scene.until("a", "exact", 0)
            for number in range(3):
                publisher.publish([block(number)])
            await scene.until("a", "exact", 3)
            publisher.restart()
            publisher.publish([block(9)])
            await scene.until("a", "exact", 1)

    run(case)


def test_pods_that_dial_the_same_endpoint_are_told_apart_by_topic():
    """The router binds; vLLM connects where its endpoint has no star."""

    async def case():
        async with Scene() as scene:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            pods = {name: scene.publisher(f"tcp://127.0.0.1:{port}", topic=name) for name in "ab"}
            for name, publisher in pods.items():
                publisher.publish([block(1)])
                source = EventSource(f"tcp://*:{port}", publisher.replay_endpoint, name)
                scene.subscriber.follow(name, source)
            for name in pods:
                await scene.until(name, "exact", 1)
            pods["b"].publish([block(2)])
            await scene.until("b", "exact", 2)
            assert scene.ledger.holdings("a").blocks == 1

    run(case)


def test_a_pod_that_is_dropped_is_heard_no_more():
    """Its blocks are forgotten; the others' are not."""

    async def case():
        async with Scene() as scene:
            for name in "ab":
                publisher = scene.publisher()
                publisher.publish([block(1)])
                scene.follow(name, publisher)
                await scene.until(name, "exact", 1)
            scene.subscriber.drop("a")
            assert (scene.ledger.trust("a").level, scene.ledger.blocks) == ("cold", 1)

    run(case)


def test_many_batches_leave_room_for_others():
    """A slice at a time: the loop is never held for long."""

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            scene.follow("a", publisher)
            await scene.until("a", "exact", 0)
            for number in range(3000):
                publisher.publish([block(number)])
            turns = 0
            while scene.ledger.holdings("a").blocks < 3000:
                turns += 1
                await asyncio.sleep(0)
            assert turns > 10

    run(case)


def test_an_endpoint_that_cannot_be_had_is_an_error():
    """With the rule by which it is bound."""

    async def case():
        async with Scene() as scene:
            with pytest.raises(TargetError, match="cannot open tcp://nowhere"):
                scene.subscriber.follow("a", EventSource("tcp://nowhere.invalid*:5557"))
            scene.subscriber.sweep()
            assert scene.ledger.trust("a").reason == "its KV events are not followed"

    run(case)


def test_a_pod_that_cannot_be_heard_is_not_made_exact_by_replays(monkeypatch, caplog):
    """Its replay socket answers, but both ends dial: what it published since would be missing."""
    monkeypatch.setattr(module, "_SILENCE_S", 0.01)

    async def case():
        async with Scene() as scene:
            publisher = scene.publisher()
            nobody = "tcp://127.0.0.1:9"
            scene.subscriber.follow("a", EventSource(nobody, publisher.replay_endpoint))
            publisher.publish([block(1)])
            while not caplog.messages:
                scene.subscriber.sweep()
                await asyncio.sleep(0.002)
            for _ in range(10):
                scene.subscriber.sweep()
                await asyncio.sleep(0.002)
            assert scene.ledger.trust("a").level == "cold"
            assert scene.subscriber._replays == {}
            (message,) = caplog.messages
            assert message.startswith(f"a: nobody is at {nobody}, so its KV events are not heard")

    run(case)


def test_closing_twice_is_closing_once():
    """A router may be told to stop by its user and by whoever started it."""

    async def case():
        async with Scene() as scene:
            scene.follow("a", scene.publisher())
            scene.subscriber.close()
            scene.subscriber.close()
            assert scene.ledger.streams == {}

    run(case)


def test_what_is_given_by_name_has_a_thread_of_its_own():
    """A name that nobody answers for holds up the thread that asks, and so nobody else."""

    async def case():
        async with Scene() as scene:
            named, plain = scene.publisher(), scene.publisher()
            for publisher in (named, plain):
                publisher.publish([block(1)])
            by_name = [
                endpoint.replace("127.0.0.1", "localhost")
                for endpoint in (named.endpoint, named.replay_endpoint)
            ]
            scene.subscriber.follow("named", EventSource(*by_name))
            scene.follow("plain", plain)
            for pod in ("named", "plain"):
                await scene.until(pod, "exact", 1)
            own = scene.subscriber._ears[by_name[0]].context
            assert own is not scene.subscriber.context
            assert scene.subscriber._ears[plain.endpoint].context is scene.subscriber.context

            scene.subscriber.drop("named")
            while not own.closed:  # noqa: ASYNC110 - a thread closes it
                await asyncio.sleep(0.001)

    run(case)
