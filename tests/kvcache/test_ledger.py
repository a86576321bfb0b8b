"""The ledger: after any history with any loss a pod is known exactly, or said not to be exact."""

from hypothesis import given
from hypothesis import strategies as st
from kvcache.publishing import SIZE, Pod

from kvbench.kvcache.blocks import block_hashes
from kvbench.kvcache.events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockStored,
    EventBatch,
    encode_batch,
    published_frames,
    replayed_frames,
)
from kvbench.kvcache.feed import Replay
from kvbench.kvcache.ledger import Ledger

NOW = 100.0
END = replayed_frames("", END_OF_REPLAY, b"")


def ledger():
    """Return a ledger whose calendar stands still."""
    return Ledger(lambda: NOW)


def stored(names, tokens, parent=None, size=SIZE, **fields):
    """Return a BlockStored."""
    return BlockStored(tuple(names), parent, tuple(tokens), size, **fields)


def frames(seq, *events, at=NOW):
    """Return the frames of a published batch."""
    return published_frames("kv", seq, encode_batch(EventBatch(at, events)))


def test_a_pod_that_is_not_followed_is_cold():
    """And matches nothing."""
    book = ledger()
    assert book.trust("a").level == "cold"
    assert book.match([1, 2], SIZE, ["a"]) == {}
    assert book.block_size(["a"]) is None


def test_an_idle_pod_that_answers_a_replay_with_nothing_is_exact_and_empty():
    """The router joined before the first batch."""
    book = ledger()
    (stream,) = book.follow("a")
    assert book.ask(stream) == [Replay(0)]
    assert book.replayed(stream, END) == []
    assert book.trust("a").level == "exact"
    assert book.match([1], SIZE, ["a"]) == {"a": 0}
    assert book.holdings("a").blocks == 0


def test_a_replay_that_is_not_answered_degrades_until_one_is():
    """Nothing shows that the last batch is there."""
    book = ledger()
    (stream,) = book.follow("a")
    book.published(stream, frames(0, stored([1], [1, 1])))
    assert book.trust("a").level == "exact"
    book.ask(stream)
    book.replay_ended(stream)
    assert book.trust("a").reason == "the replay socket does not answer"
    book.ask(stream)
    book.replayed(stream, END)
    assert book.trust("a").level == "exact"


def test_pods_whose_blocks_differ_in_size_are_kept_apart():
    """A pod answers for prompts hashed in blocks of its own size only."""
    book = ledger()
    (two,), (four,) = book.follow("two"), book.follow("four")
    book.published(two, frames(0, stored([1, 2], [1, 1, 1, 1])))
    book.published(four, frames(0, stored([1], [1, 1, 1, 1], size=4)))
    tokens = [1, 1, 1, 1]
    assert book.match(block_hashes(tokens, 2), 2, ["two", "four"]) == {"two": 2}
    assert book.match(block_hashes(tokens, 4), 4, ["two", "four"]) == {"four": 1}
    assert (book.block_size(["four", "two"]), book.blocks) == (4, 3)


def test_what_was_smaller_than_a_pods_blocks_were_parts_of_them():
    """As models with several kinds of attention tell it: a prompt's end, windows, whole blocks."""
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    book = ledger()
    (stream,) = book.follow("a")
    end = stored([8], [1, 1], parent=7, **full)
    book.published(stream, frames(0, end))
    assert (book.block_size(["a"]), book.holdings("a").parked) == (2, 1)
    whole = stored([1, 2], [1] * 8, size=4, **full)
    kept = stored([2], [1] * 8, size=4, **window)
    book.published(stream, frames(1, end, whole, kept))
    book.published(stream, frames(2, end))
    assert (book.trust("a").level, book.block_size(["a"])) == ("exact", 4)
    assert (book.holdings("a").blocks, book.holdings("a").parked) == (2, 0)
    assert book.match(block_hashes([1] * 8, 4), 4, ["a"]) == {"a": 2}
    assert book.blocks == 2


def test_a_pod_of_several_ranks_is_trusted_as_its_worst_and_holds_what_they_hold_on_average():
    """Rank 0 holds four blocks, rank 1 two of them."""
    book = ledger()
    zero, one = book.follow("a", ranks=2)
    tokens = [5] * 8
    book.published(zero, frames(0, stored([1, 2, 3, 4], tokens)))
    assert book.trust("a").level == "cold"
    book.published(one, frames(0, stored([1, 2], tokens[:4])))
    assert book.trust("a").level == "exact"
    assert book.match(block_hashes(tokens, SIZE), SIZE, ["a"]) == {"a": 3}
    assert book.holdings("a").blocks == 6


def test_what_cannot_be_read_degrades_its_pod_until_its_cache_is_cleared():
    """A batch, or a whole message."""
    for broken in (published_frames("kv", 1, b"nonsense"), [b"x"]):
        book = ledger()
        (stream,) = book.follow("a")
        book.published(stream, frames(0, stored([1], [1, 1])))
        book.published(stream, broken)
        assert book.trust("a").level == "degraded"
        assert "KV events" in book.trust("a").reason
        assert (book.holdings("a").blocks, stream.spoiled) == (0, 1)
        assert book.match(block_hashes([1, 1], SIZE), SIZE, ["a"]) == {}


def test_a_cleared_cache_makes_a_pod_exact_again():
    """Even before the size of its blocks is known."""
    book = ledger()
    (stream,) = book.follow("a", can_replay=False)
    book.published(stream, frames(7))
    assert book.trust("a").level == "degraded"
    book.published(stream, frames(8, AllBlocksCleared()))
    assert book.trust("a").level == "exact"


def test_a_pod_that_was_emptied_holds_nothing_until_it_stores_anew():
    """It says so itself later, and is exact all the time."""
    book = ledger()
    (stream,) = book.follow("a")
    book.published(stream, frames(0, stored([1], [1, 1])))
    book.emptied("a")
    assert (book.holdings("a").blocks, book.trust("a").level) == (0, "exact")
    book.published(stream, frames(1, AllBlocksCleared(), stored([1, 2], [1, 1, 2, 2])))
    assert (book.holdings("a").blocks, book.trust("a").level) == (2, "exact")
    book.emptied("unknown")


def test_whoever_believes_something_of_a_pod_is_told_when_it_is_empty():
    """It was restarted, or cleared its cache; not when what it holds is merely unknown."""
    told = []
    book = Ledger(lambda: NOW, on_empty=told.append)
    (stream,) = book.follow("a", can_replay=False)
    book.published(stream, frames(0, stored([1], [1, 1])))
    book.published(stream, frames(5))
    assert told == []
    book.published(stream, frames(6, AllBlocksCleared()))
    assert told == ["a"]
    book.published(stream, frames(0))
    assert told == ["a", "a"]


def test_a_pod_that_is_dropped_leaves_nothing_behind():
    """Endpoint removed: the index forgets it at once."""
    book = ledger()
    (stream,) = book.follow("a")
    book.published(stream, frames(0, stored([1], [1, 1])))
    book.drop("a")
    assert book.blocks == 0
    assert book.trust("a").level == "cold"


def test_batches_are_counted_and_their_age_is_told():
    """By the two calendars; a publisher whose clock is ahead is not early."""
    book = ledger()
    (stream,) = book.follow("a")
    book.published(stream, frames(0, stored([1], [1, 1]), at=NOW - 2.5))
    assert (stream.batches, stream.events, stream.lag_s) == (1, 1, 2.5)
    book.published(stream, frames(1, at=NOW + 9))
    assert (stream.batches, stream.lag_s) == (2, 0.0)
    book.ask(stream)
    book.replayed(stream, [b"", *frames(2, at=NOW - 99)])
    assert (stream.batches, stream.lag_s) == (3, 0.0)


class Link:
    """The network between a pod and the ledger, which loses, doubles and delays."""

    def __init__(self, book, pod):
        self.book, self.pod, self.name = book, pod, str(pod.number)
        (self.stream,) = book.follow(self.name)

    def hear(self, message):
        """Deliver a published message."""
        frames = published_frames(message.topic, message.seq, message.payload)
        return self.book.published(self.stream, frames)

    def replay(self, orders, draw):
        """Carry replays out; now and then one breaks off."""
        for order in orders:
            answers = self.pod.replay(order.start)
            broken = draw is not None and draw.random() < 0.2
            kept = answers[: draw.randrange(len(answers))] if broken else answers
            more = []
            for message in kept:
                payload = replayed_frames("", message.seq, message.payload, with_topic=False)
                more += self.book.replayed(self.stream, payload)
                if more:  # the next replay makes this one void
                    break
            if broken and not more:
                more += self.book.replay_ended(self.stream)
            self.replay(more, draw)


def disturb(link, draw, kept):
    """Let a pod act, and the network do with it what it likes; now and then it starts anew."""
    if draw.random() < 0.06:
        if draw.random() < 0.5:
            link.pod.__init__(link.pod.number, 40, kept)
        link.replay(link.book.broken(link.stream, "its connection broke"), draw)
        link.replay(link.book.ask(link.stream), draw)
    message, fate = link.pod.act(draw), draw.random()
    if message is not None and fate > 0.2:
        link.replay(link.hear(message), draw)
        if fate < 0.3:
            link.replay(link.hear(message), draw)
        if fate > 0.97:
            link.replay(link.hear(draw.choice(link.pod.published)), draw)


@given(st.randoms(use_true_random=False), st.sampled_from([1000, 1000, 4]), st.integers(1, 3))
def test_after_any_history_a_pod_is_known_exactly_or_not_said_to_be(draw, kept, count):
    """Law: index = cache, or not exact. Nothing more is published in the end: silence is asked."""
    book = ledger()
    links = [Link(book, Pod(number, 40, kept)) for number in range(count)]
    for _ in range(60):
        disturb(draw.choice(links), draw, kept)
    for link in links:
        while link.stream.feed.replaying:
            link.replay(book.replay_ended(link.stream), None)
        for _ in range(2):  # who was in doubt is recognised first
            link.replay(book.ask(link.stream), None)
        prompt = block_hashes([draw.randrange(2) for _ in range(10)], SIZE)
        matched = book.match(prompt, SIZE, [link.name])
        if book.trust(link.name).level != "exact":
            assert matched == {}
            continue
        assert link.stream.index is None or (
            link.stream.index.contents(link.name) == link.pod.engine.pool.contents()
        )
        assert matched == {link.name: len(link.pod.engine.pool.lookup(prompt, len(prompt)))}
        assert book.holdings(link.name).blocks == len(link.pod.engine.pool.contents())
