"""Beginnings kept once: what is found under a name is what was kept under it, within the room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbench.text.beginnings import Beginnings

SEQUENCES = st.lists(
    st.lists(st.lists(st.integers(0, 1), max_size=3).map(tuple), min_size=1, max_size=5),
    max_size=12,
)


def keep(kept: Beginnings, parts) -> None:
    """Keep a sequence; the parts up to its end name each beginning."""
    place, names, numbers = None, [], []
    for count, part in enumerate(parts, 1):
        numbers += part
        name = tuple(parts[:count])
        found = None if names else kept.find(name)
        if found is None:
            names.append((name, len(numbers)))
        else:
            place = found
    known = kept.numbers(place)
    assert known == tuple(numbers[: len(known)])
    kept.keep(place, tuple(numbers[len(known) :]), names)


@given(sequences=SEQUENCES, capacity=st.sampled_from([4, 9, 1000]))
def test_a_name_stands_for_what_was_kept_under_it(sequences, capacity):
    """Whatever branches off where, and whatever had to go; names of no more numbers included."""
    kept = Beginnings((), capacity)
    for parts in sequences:
        keep(kept, parts)
        assert len(kept) <= capacity
        for length in range(len(parts)):
            name = tuple(parts[: length + 1])
            place = kept.find(name)
            if place is not None:
                numbers = sum(name, ())
                assert kept.numbers(place) == numbers
                assert kept.names(place)[-1][1] == len(numbers)
            else:
                assert capacity < 1000


@given(sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12))
def test_each_beginning_is_kept_once(sequences):
    """As many numbers as the tree of all has branches, where each is named and there is room."""
    kept = Beginnings((), 1000)
    for numbers in sequences:
        keep(kept, [(number,) for number in numbers])
    tree = {tuple(numbers[:end]) for numbers in sequences for end in range(1, len(numbers) + 1)}
    assert len(kept) == len(tree)


def test_a_sequence_goes_before_one_that_is_in_use_but_not_before_what_branches_off_it():
    """Room for eight numbers: what is left is the oldest one, whose branch was asked for."""
    kept = Beginnings((), 8)
    keep(kept, [(1, 1)])
    keep(kept, [(1, 1), (2,)])
    keep(kept, [(1, 1), (3,)])
    keep(kept, [(4, 4, 4)])
    assert kept.find(((1, 1), (3,))) is not None
    keep(kept, [(5, 5, 5)])
    names = [((1, 1),), ((1, 1), (2,)), ((1, 1), (3,)), ((4, 4, 4),), ((5, 5, 5),)]
    assert [kept.find(name) is not None for name in names] == [True, True, True, False, True]


def test_there_is_room_for_so_many_names():
    """Also where they name few numbers."""
    kept = Beginnings((), 1000, most_names=3)
    for number in range(5):
        keep(kept, [(number,)])
    left = [kept.find(((number,),)) is not None for number in range(5)]
    assert left == [False, False, True, True, True]


def test_what_follows_on_a_beginning_that_has_gone_is_not_kept():
    """Nobody could find it."""
    kept = Beginnings((), 4)
    keep(kept, [(1, 1)])
    place = kept.find(((1, 1),))
    keep(kept, [(2, 2, 2)])
    kept.keep(place, (3,), [(((1, 1), (3,)), 3)])
    assert (len(kept), kept.find(((1, 1), (3,)))) == (3, None)
    assert kept.numbers(place) == (1, 1)
