"""The index: what it says about pods equals what the pods hold, whatever the network did."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcache.publishing import SIZE, Pod

from kvbench.engine.values import EngineRequest
from kvbench.kvcache.blocks import ROOT, PromptKeys, block_hashes
from kvbench.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventFormatError,
    decode_batch,
)
from kvbench.kvcache.feed import Apply, EventFeed, Forget
from kvbench.kvcache.index import MOST_COPIES, BlockIndex


def stored(names, tokens, parent=None, **fields):
    """Return a BlockStored of blocks of two tokens."""
    return BlockStored(tuple(names), parent, tuple(tokens), SIZE, **fields)


def batch(*events):
    """Return a batch."""
    return EventBatch(0.0, events)


def index_of(pod, *events):
    """Return an index to which a pod has told these events."""
    index = BlockIndex(SIZE)
    index.apply(pod, batch(*events))
    return index


def test_a_pod_matches_as_far_as_it_holds_the_prompt_without_a_hole():
    """Blocks behind a missing one cannot be used."""
    index = index_of("a", stored([71, 72, 73], [1, 1, 2, 2, 3, 3]))
    index.apply("b", batch(stored([7, 8], [1, 1, 2, 2])))
    index.add("c")
    assert index.match(block_hashes([1, 1, 2, 2, 3, 3, 4, 4], SIZE)) == {"a": 3, "b": 2, "c": 0}
    index.apply("a", batch(BlockRemoved((72,))))
    assert index.match(block_hashes([1, 1, 2, 2, 3, 3], SIZE)) == {"a": 1, "b": 2, "c": 0}
    assert (index.blocks("a"), index.blocks("b"), len(index)) == (2, 2, 3)


def test_engines_may_hash_as_they_like():
    """Numbers, digests of 32 bytes, the same names for other blocks: aliases are per pod."""
    digest = bytes(range(32))
    index = index_of("a", stored([digest], [1, 1]), stored([5], [2, 2], parent=digest))
    index.apply("b", batch(stored([5], [9, 9])))
    assert index.match(block_hashes([1, 1, 2, 2], SIZE)) == {"a": 2, "b": 0}
    as_number = int.from_bytes(digest[-8:], "big")
    index.apply("a", batch(BlockRemoved((as_number,))))
    assert index.match(block_hashes([1, 1, 2, 2], SIZE))["a"] == 0
    assert index.match(block_hashes([9, 9], SIZE)) == {"a": 0, "b": 1}


def test_copies_are_counted_and_the_block_is_held_until_the_last_is_gone():
    """Two requests filled the same block at once."""
    index = index_of("a", stored([5], [1, 1]), stored([5], [1, 1]))
    index.apply("a", batch(BlockRemoved((5,))))
    assert index.blocks("a") == 1
    index.apply("a", batch(BlockRemoved((5,))))
    assert index.blocks("a") == 0


def test_copies_are_counted_to_a_bound():
    """Some engines announce reused blocks again and never remove them."""
    index = index_of("a", *[stored([5], [1, 1])] * 1000)
    index.apply("a", batch(*[BlockRemoved((5,))] * MOST_COPIES))
    assert index.blocks("a") == 0


def test_an_engine_that_had_less_than_was_believed_is_taken_at_its_word():
    """The first block that it did not have is dropped, so nothing behind it matches."""
    hashes = block_hashes([1, 1, 2, 2, 3, 3], SIZE)
    index = index_of("a", stored([1, 2, 3], [1, 1, 2, 2, 3, 3]), stored([2], [2, 2], parent=1))
    assert index.correct("a", hashes, 1) == 2
    assert index.match(hashes) == {"a": 1}
    assert index.correct("a", hashes, 1) == 0
    assert index.correct("a", hashes, 3) == 0
    assert index.correct("nobody", hashes, 0) == 0
    index.apply("a", batch(stored([2], [2, 2], parent=1)))
    assert index.match(hashes) == {"a": 3}
    index.apply("a", batch(BlockRemoved((2,))))
    assert index.match(hashes) == {"a": 1}


def test_a_block_whose_parent_is_unknown_is_parked_until_the_parent_comes():
    """With all that wait for it in turn; who joined late learns them so."""
    index = index_of("a", stored([3], [3, 3], parent=2), stored([4], [4, 4], parent=3))
    hashes = block_hashes([1, 1, 2, 2, 3, 3, 4, 4], SIZE)
    assert (index.blocks("a"), index.parked("a")) == (0, 2)
    index.apply("a", batch(stored([1, 2], [1, 1, 2, 2])))
    assert (index.blocks("a"), index.parked("a")) == (4, 0)
    assert index.match(hashes) == {"a": 4}


def test_a_parked_block_that_is_removed_never_comes_back():
    """Nor does it when it was parked twice and removed twice."""
    index = index_of("a", *[stored([3], [3, 3], parent=2)] * 2)
    index.apply("a", batch(BlockRemoved((3,)), BlockRemoved((3,))))
    assert index.parked("a") == 0
    index.apply("a", batch(BlockRemoved((3,)), stored([1, 2], [1, 1, 2, 2])))
    assert index.blocks("a") == 2


def test_what_is_parked_is_bounded(monkeypatch):
    """A publisher of orphans cannot fill the memory."""
    monkeypatch.setattr("kvbench.kvcache.index.MOST_PARKED", 3)
    index = index_of("a", *[stored([n], [n, n], parent=999) for n in range(5)])
    assert (index.parked("a"), index.dropped) == (3, 2)


def test_clearing_and_forgetting_a_pod_leave_the_others_alone():
    """A reset is an event; a removed pod's place may be taken by another."""
    hashes = block_hashes([1, 1], SIZE)
    index = index_of("a", stored([1], [1, 1]))
    index.apply("b", batch(stored([1], [1, 1])))
    assert index.apply("a", batch(AllBlocksCleared()))
    assert index.match(hashes) == {"a": 0, "b": 1}
    index.remove("a")
    assert index.pods == ("b",)
    index.add("c")
    assert index.match(hashes) == {"b": 1, "c": 0}
    index.remove("b")
    assert (len(index), index.match(hashes)) == (0, {"c": 0})
    index.remove("nobody")
    assert (index.blocks("b"), index.parked("b"), index.contents("b")) == (0, 0, set())


def test_only_gpu_memory_and_attention_over_the_whole_context_count():
    """Offloaded copies and sliding windows are no prefix on this pod."""
    index = index_of(
        "a",
        stored([1], [1, 1], medium="CPU"),
        stored([2], [2, 2], medium="gpu", group_idx=0, kv_cache_spec_kind="full_attention"),
        stored([3], [3, 3], group_idx=1, kv_cache_spec_kind="sliding_window"),
        stored([4], [4, 4], group_idx=2, kv_cache_spec_kind="full_attention"),
        BlockRemoved((2,), "CPU", 0),
        BlockRemoved((2,), "GPU", 1),
    )
    assert index.contents("a") == set(block_hashes([2, 2], SIZE))
    index.apply("a", batch(BlockRemoved((2,), "GPU", 0)))
    assert index.blocks("a") == 0


def test_another_block_size_is_refused_with_the_way_out():
    """Keys of different lengths would never meet."""
    with pytest.raises(EventFormatError, match="a: expected blocks of 2 tokens, got 4") as caught:
        index_of("a", BlockStored((1,), None, (1, 2, 3, 4), 4))
    assert "--block-size" in caught.value.hint


def test_parts_of_blocks_and_blocks_of_other_groups_are_skipped_whatever_their_size():
    """An engine may announce the end of a prompt as a smaller block of its own."""
    full = {"kv_cache_spec_kind": "full_attention"}
    index = index_of(
        "a",
        stored([1], [1, 1], group_idx=0, **full),
        BlockStored((2,), 9, (1,), 1, group_idx=0, **full),
        BlockStored((3,), None, (1, 1, 2, 2), 4, group_idx=1, **full),
        BlockRemoved((2,), "GPU", 0),
    )
    assert index.contents("a") == set(block_hashes([1, 1], SIZE))
    assert index.parked("a") == 0


@pytest.mark.parametrize("token", [-1, 2**32])
@pytest.mark.parametrize("parent", [None, 9])
def test_a_token_id_beyond_32_bits_is_refused(token, parent):
    """Whether its block can be placed or not."""
    with pytest.raises(EventFormatError, match="token_ids"):
        index_of("a", stored([1], [1, token], parent=parent))


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        pytest.param(PromptKeys(cache_salt="s"), {"extra_keys": (("s",), None)}, id="a salt"),
        pytest.param(
            PromptKeys(lora_name="l"),
            {"lora_name": "l", "extra_keys": (("l",), ("l",))},
            id="an adapter",
        ),
        pytest.param(PromptKeys(lora_name="l"), {"lora_name": "l"}, id="an adapter, old vLLM"),
        pytest.param(PromptKeys(lora_name="#3"), {"lora_id": 3}, id="an adapter without a name"),
        pytest.param(
            PromptKeys("l", "l"),
            {"lora_name": "l", "extra_keys": (("l", "l"), ("l",))},
            id="an adapter and a salt of the same name",
        ),
        pytest.param(
            PromptKeys(mm_hashes=(("cat", 1, 2),)),
            {"extra_keys": ((("cat", 1),), (("cat", -1),))},
            id="a picture over two blocks",
        ),
    ],
)
def test_extra_keys_on_the_wire_give_the_hashes_of_the_request(keys, fields):
    """On the wire they are bare; the chain tags them."""
    index = index_of("a", stored([1, 2], [1, 1, 2, 2], **fields))
    assert index.match(block_hashes([1, 1, 2, 2], SIZE, keys)) == {"a": 2}
    assert index.match(block_hashes([1, 1, 2, 2], SIZE)) == {"a": 0}


def test_extra_keys_of_unknown_kinds_separate_blocks_all_the_same():
    """A digest of prompt embeddings: nobody can ask for it, but nobody must hit it."""
    index = index_of("a", stored([1], [1, 1], extra_keys=((b"\x01\x02",),)))
    assert index.blocks("a") == 1
    assert index.match(block_hashes([1, 1], SIZE)) == {"a": 0}


class Router:
    """The thin rim: carries out orders."""

    def __init__(self, pods):
        self.index = BlockIndex(SIZE)
        self.pods = pods
        self.feeds = {pod.number: EventFeed() for pod in pods}

    def hear(self, pod, message):
        """Take one published message."""
        self.carry_out(pod, self.feeds[pod.number].published(message))

    def carry_out(self, pod, orders):
        """Do what the feed says, replays included."""
        name, feed = str(pod.number), self.feeds[pod.number]
        for order in orders:
            if isinstance(order, Apply):
                if self.index.apply(name, decode_batch(order.payload)):
                    feed.cleared()
            elif isinstance(order, Forget):
                self.index.clear(name)
            else:
                for message in pod.replay(order.start):
                    self.carry_out(pod, feed.replayed(message))


def disturb(draw, pods, router):
    """Let pods work while the network loses, doubles and delays; now and then a pod restarts."""
    late = []
    for _ in range(60):
        pod = draw.choice(pods)
        if draw.random() < 0.02:
            pod.__init__(pod.number, 40, pod.kept)
            late = [item for item in late if item[0] is not pod]
            router.carry_out(pod, router.feeds[pod.number].restarted())
        message, fate = pod.act(draw), draw.random()
        if message is None or fate < 0.15:
            continue
        if fate < 0.25:
            late.append((pod, message))
            continue
        router.hear(pod, message)
        if fate < 0.35:
            router.hear(pod, message)
        if late and fate < 0.45:
            router.hear(*late.pop())


def settle(pod):
    """Let a pod finish, and say one last thing that is heard for sure."""
    while pod.engine.has_work:
        pod.engine.step(0.0)
    pod.engine.add(EngineRequest("last", [3, 3, pod.number, 3], 1, lambda _: 3))
    pod.engine.step(0.0)
    return pod.publish()


@given(st.randoms(use_true_random=False), st.sampled_from([1000, 1000, 3]), st.integers(1, 3))
def test_the_index_equals_the_pods_whatever_the_network_did(draw, kept, count):
    """Law 2: messages lost, twice, late; restarts; replays with and without the whole past."""
    pods = [Pod(number, 40, kept) for number in range(count)]
    router = Router(pods)
    disturb(draw, pods, router)
    for pod in pods:
        name = str(pod.number)
        router.hear(pod, settle(pod))
        contents, held = router.index.contents(name), pod.engine.pool.contents()
        if router.feeds[pod.number].trust.level != "exact":
            assert kept == 3
            assert contents <= held
            continue
        assert contents == held
        assert router.index.parked(name) == 0
        prompt = block_hashes([draw.randrange(2) for _ in range(10)], SIZE)
        expected = len(pod.engine.pool.lookup(prompt, len(prompt)))
        assert router.index.match(prompt)[name] == expected


def lowered(names, medium="CPU", **fields):
    """Return the event by which vLLM announces offloaded blocks: names, and no tokens."""
    return BlockStored(tuple(names), None, (), SIZE, medium=medium, **fields)


def test_what_was_offloaded_counts_where_lower_tiers_do():
    """Evicted from the GPU after it was copied to the CPU."""
    prompt = block_hashes([1, 1, 2, 2, 3, 3], SIZE)
    index = index_of("a", stored([1, 2, 3], [1, 1, 2, 2, 3, 3]), lowered([1, 2]))
    index.apply("a", batch(BlockRemoved((2, 3)), BlockRemoved((1,))))
    assert index.match(prompt) == {"a": 0}
    assert index.match(prompt, anywhere=True) == {"a": 2}
    assert index.blocks("a") == 0
    index.apply("a", batch(stored([1], [1, 1])))
    assert (index.match(prompt), index.match(prompt, anywhere=True)) == ({"a": 1}, {"a": 2})


def test_each_medium_is_kept_for_itself():
    """A block leaves the last tier that has it, not the first."""
    prompt = block_hashes([1, 1], SIZE)
    index = index_of("a", stored([1], [1, 1]), lowered([1]), lowered([1], "STORAGE"))
    index.apply("b", batch(stored([1], [1, 1]), lowered([1])))
    index.apply("a", batch(BlockRemoved((1,)), BlockRemoved((1,), "CPU")))
    assert index.match(prompt, anywhere=True) == {"a": 1, "b": 1}
    index.apply("a", batch(BlockRemoved((1,), "STORAGE")))
    assert index.match(prompt, anywhere=True) == {"a": 0, "b": 1}


def test_a_lower_copy_of_an_unknown_block_is_dropped_and_a_reset_empties_all_tiers():
    """Its name alone does not say where it belongs."""
    index = index_of("a", stored([1], [1, 1]), lowered([1, 9]))
    assert index.dropped == 1
    index.clear("a")
    assert index.match(block_hashes([1, 1], SIZE), anywhere=True) == {"a": 0}
    index.apply("a", batch(BlockRemoved((1,), "CPU")))


def test_many_pods_are_told_apart():
    """More pods than a machine word has bits."""
    index = BlockIndex(SIZE)
    rng = random.Random(7)
    depth = {f"pod{n}": rng.randrange(5) for n in range(150)}
    for pod, blocks in depth.items():
        index.add(pod)
        index.apply(pod, batch(stored(range(blocks), [1] * blocks * SIZE)))
    assert index.match(block_hashes([1] * 10, SIZE)) == depth


class Told:
    """Folds what an observer is told: who holds what."""

    def __init__(self):
        self.held = {}
        self.evicted = 0
        self.extensions = []

    def extended(self, pod, block, blocks):
        """Keep it."""
        assert pod in self.held[block]
        self.extensions.append(blocks)

    def stored(self, pod, block, parent, holders):
        """Add a holder."""
        pods = self.held.setdefault(block, set())
        assert pod not in pods
        assert holders == len(pods)
        assert parent == ROOT or parent in self.held
        pods.add(pod)

    def removed(self, pod, block, holders, *, evicted):
        """Take a holder away."""
        self.held[block].remove(pod)
        assert holders == len(self.held[block])
        self.evicted += evicted


def test_an_observer_is_told_of_every_block_that_comes_and_goes():
    """Two pods hold the same two blocks; one evicts a block and stores it anew; one is cleared."""
    told = Told()
    index = BlockIndex(4, told)
    both = EventBatch(0.0, (BlockStored((1, 2), None, tuple(range(8)), 4),))
    more = BlockStored((3,), 2, (9, 9, 9, 9), 4)
    index.apply("a", both)
    index.apply("b", both)
    index.apply("b", EventBatch(0.0, (BlockRemoved((2,)),)))

    assert sorted(map(sorted, told.held.values())) == [["a"], ["a", "b"]]
    assert told.evicted == 1

    index.apply("a", EventBatch(0.0, (more,)))
    index.clear("a")

    assert sorted(map(sorted, told.held.values())) == [[], [], ["b"]]
    assert (told.evicted, told.extensions) == (1, [1])
