"""Who is let in, who waits, who is turned away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbench.router.access import Grant, Holder
from kvbench.router.waiting import Refusal, Visit, WaitingRoom


class Guests:
    """Visits by name, and what became of them."""

    def __init__(self, inside: int = 1, waiting: int = 2, patience_s: float = 30.0) -> None:
        self.waited: list[float] = []
        self.room = WaitingRoom(inside, waiting, patience_s, self.waited.append)
        self.begun = ""
        self.refused: dict[str, Refusal] = {}
        self.visits: dict[str, Visit] = {}

    def arrive(self, names: str, now: float = 0.0, holder: Holder | None = None) -> None:
        """Have one come for each letter."""
        for name in names:

            def begin(name: str = name) -> None:
                self.begun += name

            def turn_away(refusal: Refusal, name: str = name) -> None:
                self.refused[name] = refusal
                self.visits[name].end(now)

            self.visits[name] = Visit(begin, turn_away, holder, self.room)
            self.visits[name].arrive(now)

    def end(self, names: str, now: float = 0.0) -> None:
        """Have these leave."""
        for name in names:
            self.visits[name].end(now)


def test_so_many_are_let_in_and_the_rest_wait_in_order():
    """Each end lets the next in."""
    guests = Guests(inside=2, waiting=3)
    guests.arrive("abcde")
    assert (guests.begun, guests.room.inside, guests.room.waiting) == ("ab", 2, 3)

    guests.end("b", now=1.0)
    assert guests.begun == "abc"
    guests.end("a", now=4.0)
    assert guests.begun == "abcd"
    assert guests.waited == [0.0, 0.0, 1.0, 4.0]


def test_beyond_that_one_is_turned_away_with_a_time():
    """A full queue needs as long as visits have taken, divided by the places."""
    guests = Guests(inside=1, waiting=1)
    guests.arrive("abc")
    refusal = guests.refused["c"]
    assert (refusal.limit, refusal.status, refusal.retry_after_s) == ("queue", 429, 2)
    assert refusal.sentence == "1 requests are under way and 1 wait."

    for name in "defghijklm":
        guests.arrive(name, 0.0)
        guests.end(guests.begun[-1], 1000.0)
    assert guests.room.inside == 1
    guests.arrive("xyz")
    assert guests.refused["z"].retry_after_s == 60


def test_who_has_waited_too_long_is_turned_away():
    """And who came later still waits."""
    guests = Guests(patience_s=10.0)
    guests.arrive("ab", now=0.0)
    guests.arrive("c", now=5.0)
    guests.room.sweep(9.9)
    assert guests.refused == {}

    guests.room.sweep(10.0)
    assert {name: r.status for name, r in guests.refused.items()} == {"b": 503}
    assert guests.refused["b"].sentence == "No place became free within 10 s."
    guests.end("a", now=11.0)
    assert guests.begun == "ac"


def test_who_leaves_while_waiting_takes_nobodys_place():
    """Nor does who leaves twice."""
    guests = Guests(inside=1, waiting=2)
    guests.arrive("abc")
    guests.end("bb")
    assert (guests.room.inside, guests.room.waiting, guests.begun) == (1, 1, "a")
    guests.end("aaa")
    assert (guests.room.inside, guests.begun) == (1, "ac")
    guests.end("c")
    assert guests.room.inside == 0


def test_a_thousand_that_end_as_they_begin_do_not_pile_up():
    """One after the other, not one within the other."""
    guests = Guests(inside=1, waiting=5000)
    guests.arrive("a")
    count = 0
    visits: list[Visit] = []

    def begin() -> None:
        nonlocal count
        count += 1
        visits[count - 1].end(0.0)

    for _ in range(5000):
        visits.append(Visit(begin, guests.refused.__setitem__, None, guests.room))
        visits[-1].arrive(0.0)
    guests.end("a")
    assert (count, guests.room.inside, guests.room.waiting) == (5000, 0, 0)


def test_the_limit_of_a_key_comes_first_and_counts_those_who_wait():
    """One key cannot fill the queue."""
    holder = Holder(Grant("ann", b"", in_flight=2))
    guests = Guests(inside=1, waiting=5)
    guests.arrive("abc", holder=holder)
    refusal = guests.refused["c"]
    assert (refusal.limit, refusal.status, refusal.retry_after_s) == ("in_flight", 429, 1)
    assert refusal.sentence == "The key ann has reached its limit of requests at once."

    guests.end("b")
    guests.arrive("d", holder=holder)
    assert guests.room.waiting == 1
    guests.end("ad")
    assert holder.under_way == 0


def test_a_visit_without_a_room_goes_straight_in():
    """Where only keys have limits."""
    holder = Holder(Grant("ann", b"", per_minute=6))
    refused: list[Refusal] = []
    begun: list[int] = []
    for number in range(2):
        visit = Visit(lambda number=number: begun.append(number), refused.append, holder)
        visit.arrive(0.0)
        visit.end(0.0)
    assert begun == [0]
    assert [(r.limit, r.retry_after_s) for r in refused] == [("per_minute", 10)]
    assert holder.under_way == 0


ACTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "end", "sweep"]), st.integers(0, 40), st.floats(0, 8)),
    max_size=80,
)


@given(ACTS, st.integers(1, 3), st.integers(0, 3))
def test_whatever_happens_every_place_is_given_back(acts, inside, waiting):
    """Never more inside or waiting than may be; nobody waits beside a free place; none is lost."""
    guests = Guests(inside, waiting, patience_s=10.0)
    holder = Holder(Grant("ann", b""))
    now, names, ended = 0.0, [chr(256 + n) for n in range(len(acts))], set()
    for act, which, pause in acts:
        now += pause
        if act == "arrive":
            guests.arrive(names[len(guests.visits)], now, holder)
        elif act == "sweep":
            guests.room.sweep(now)
        elif guests.visits:
            name = names[which % len(guests.visits)]
            guests.end(name, now)
            ended.add(name)
        room = guests.room
        open_ = {n for n in guests.visits if n not in ended and n not in guests.refused}
        assert room.inside <= inside
        assert room.waiting <= waiting
        assert room.inside == inside or not room.waiting
        assert len(open_) == room.inside + room.waiting == holder.under_way
        assert len(set(guests.begun)) == len(guests.begun)
    for name in guests.visits:
        guests.end(name, now)
    assert (guests.room.inside, guests.room.waiting, holder.under_way) == (0, 0, 0)
