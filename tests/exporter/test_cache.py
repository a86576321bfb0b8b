from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kvbench.exporter.cache import CacheModel
from kvbench.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbench.kvcache.index import BlockIndex
from kvbench.metrics import exporter
from kvbench.metrics.exporter import STORED_CAUSES
from kvbench.metrics.instruments import Buckets

SIZE = 2


class Fleet:
    """Pods whose events go through an index into the model."""

    def __init__(self, remember: int = 100):
        self.registry = CollectorRegistry()
        self.model = CacheModel(
            lambda name: (name, SIZE),
            Buckets(exporter.BLOCK_LIFETIME, self.registry),
            Buckets(exporter.REUSE_GAP, self.registry),
            since=5.0,
            remember=remember,
        )
        self.index = BlockIndex(SIZE, self.model)

    def at(self, now: float, pod: str, *events, replayed: bool = False) -> None:
        """Have a pod publish events at a moment."""
        self.model.begins(pod, now, replayed=replayed)
        self.index.apply(pod, EventBatch(now, events))

    def causes(self, pod: str) -> dict[str, int]:
        """Return why a pod's blocks were computed, those that occurred."""
        counts = dict(zip(STORED_CAUSES, self.model.caches[pod].causes, strict=True))
        return {cause: count for cause, count in counts.items() if count}

    def observed(self, metric) -> dict[str, tuple[float, float]]:
        """Return count and sum of a histogram by pod."""
        found: dict[str, list[float]] = {}
        for suffix, place in (("_count", 0), ("_sum", 1)):
            for family in self.registry.collect():
                for sample in family.samples:
                    if sample.name == metric.name + suffix:
                        pair = found.setdefault(sample.labels["pod"], [0.0, 0.0])
                        pair[place] = sample.value
        return {pod: (count, total) for pod, (count, total) in found.items()}


def stored(*names: int, parent: int | None = None) -> BlockStored:
    """Return an event of blocks whose tokens are their names, twice."""
    return BlockStored(names, parent, tuple(t for name in names for t in (name, name)), SIZE)


def removed(*names: int) -> BlockRemoved:
    """Return an event of an eviction."""
    return BlockRemoved(names)


def test_a_block_is_computed_because_it_is_new_elsewhere_evicted_or_reset():
    """The four reasons, each met once or more."""
    fleet = Fleet()
    fleet.at(1.0, "a", stored(1, 2))
    fleet.at(2.0, "b", stored(1))
    fleet.at(3.0, "a", removed(2))
    fleet.at(4.0, "b", stored(2, parent=1))
    fleet.at(5.0, "b", AllBlocksCleared())
    fleet.at(6.0, "b", stored(7), stored(1, 2))

    assert fleet.causes("a") == {"cold": 2}
    assert fleet.causes("b") == {"cold": 1, "elsewhere": 2, "evicted": 1, "reset": 1}
    assert fleet.model.caches["b"].known_tokens == 4 * SIZE


def test_what_several_pods_hold_is_counted_once_and_what_it_wastes_as_well():
    """Three pods hold one block, one of them another."""
    fleet = Fleet()
    for pod in "abc":
        fleet.at(1.0, pod, stored(1))
    fleet.at(2.0, "c", stored(2, parent=1))

    assert fleet.model.held == [0, SIZE, 0, SIZE]
    assert (fleet.model.unique_tokens, fleet.model.duplicate_tokens) == (2 * SIZE, 2 * SIZE)


def test_a_block_lives_from_being_stored_to_being_evicted():
    """A reset ends no life: it says nothing about the cache's size."""
    fleet = Fleet()
    fleet.at(10.0, "a", stored(1, 2))
    fleet.at(40.0, "a", removed(2))
    fleet.at(50.0, "a", AllBlocksCleared())

    assert fleet.observed(exporter.BLOCK_LIFETIME) == {"a": (1.0, 30.0)}
    assert fleet.model.caches["a"].evicted == 1


def test_a_request_that_is_computed_in_pieces_uses_nothing_again():
    """Chunks of a prompt follow within a second, and an answer fills one block at a time."""
    fleet = Fleet()
    fleet.at(10.0, "a", stored(1, 2))
    fleet.at(10.2, "a", stored(3, 4, parent=2))
    fleet.at(19.0, "a", stored(5, parent=4))

    assert fleet.observed(exporter.REUSE_GAP) == {}


def test_a_prefix_is_used_again_when_a_later_turn_or_another_request_goes_on_behind_it():
    """A turn that is several blocks long, and then a branch at the same place."""
    fleet = Fleet()
    fleet.at(10.0, "a", stored(1, 2))
    fleet.at(30.0, "a", stored(3, 4, parent=2))
    fleet.at(35.0, "a", stored(9, parent=2))

    assert fleet.observed(exporter.REUSE_GAP) == {"a": (2.0, 20.0 + 5.0)}


def test_a_prefix_that_is_asked_for_after_its_eviction_counts_once():
    """However long it is; the gap is from its last use, not from its eviction."""
    fleet = Fleet()
    fleet.at(10.0, "a", stored(1, 2, 3))
    fleet.at(20.0, "a", removed(3, 2, 1))
    fleet.at(50.0, "a", stored(1, 2, 3))

    assert fleet.observed(exporter.REUSE_GAP) == {"a": (1.0, 40.0)}
    assert fleet.causes("a") == {"cold": 3, "evicted": 3}


def test_what_was_before_the_exporter_is_known_and_not_counted():
    """A replay brings what a pod holds and when it was stored; a life may begin there."""
    fleet = Fleet()
    fleet.at(1.0, "a", stored(1, 2), stored(3), replayed=True)
    fleet.at(2.0, "a", removed(3), replayed=True)
    fleet.at(9.0, "a", removed(2), replayed=True)
    fleet.at(10.0, "a", stored(3))

    assert fleet.causes("a") == {"evicted": 1}
    assert fleet.observed(exporter.BLOCK_LIFETIME) == {"a": (1.0, 8.0)}
    assert fleet.model.unique_tokens == 2 * SIZE


def test_memory_of_what_is_gone_is_bounded_and_the_oldest_is_forgotten_first():
    """What is forgotten counts as new when it comes back."""
    fleet = Fleet(remember=10)
    for name in range(100):
        fleet.at(1.0 + name, "a", stored(name))
        fleet.at(1.5 + name, "a", removed(name))
    fleet.at(200.0, "a", stored(99))
    fleet.at(200.0, "a", stored(0))

    assert fleet.model.remembered <= 10
    assert fleet.causes("a") == {"cold": 101, "evicted": 1}


pods = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("store"), pods, st.integers(0, 5)),
    st.tuples(st.just("evict"), pods, st.integers(0, 5)),
    st.tuples(st.just("clear"), pods, st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_after_any_history_the_model_holds_what_the_index_holds(history):
    """Different blocks by how many pods hold them, and every pod's own."""
    fleet = Fleet()
    for number, (what, pod, name) in enumerate(history):
        event = {"store": stored(name), "evict": removed(name), "clear": AllBlocksCleared()}[what]
        fleet.at(1.0 + number, pod, event)

    contents = {pod: fleet.index.contents(pod) for pod in "abc"}
    holders = Counter(Counter(b for blocks in contents.values() for b in blocks).values())
    held = {k: tokens // SIZE for k, tokens in enumerate(fleet.model.held) if tokens}
    assert held == dict(holders)
    for pod, cache in fleet.model.caches.items():
        assert set(cache.stored_at) == contents[pod]
        assert set(cache.used_at) <= contents[pod]


def test_a_reset_is_counted_if_it_was_not_before_the_exporter():
    """What a replay tells of the past is not news."""
    fleet = Fleet()
    for now, replayed in ((1.0, True), (9.0, False)):
        fleet.model.begins("a", now, replayed=replayed)
        fleet.model.cleared("a")

    assert fleet.model.resets == {"a": 1}
