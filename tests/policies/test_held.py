"""Blocks in order of their use: the same ones as a list of single blocks would have."""

from __future__ import annotations

import math
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from kvbench.policies.held import Held


def chain(names: list[int]) -> tuple[int, ...]:
    """Return keys that each stand for the whole prefix that ends there."""
    return tuple(hash(tuple(names[: i + 1])) for i in range(len(names)))


chains = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(chain)
steps = st.one_of(
    st.tuples(st.just("touch"), chains),
    st.tuples(st.just("bound"), st.integers(1, 12)),
    st.tuples(st.just("drop"), st.integers(0, 40)),
)


@given(history=st.lists(steps, max_size=40), asked=chains, capacity=st.integers(1, 12))
def test_after_any_history_the_same_blocks_are_held_as_one_by_one(history, asked, capacity):
    """Matched, counted and forgotten alike; the oldest go, the deepest of a prompt first."""
    held, stamps = Held(capacity), dict[int, int]()
    for now, (step, what) in enumerate(history):
        if step == "touch":
            held.touch(what, now)
            for block in reversed(what[:capacity]):
                stamps.pop(block, None)
                stamps[block] = now
        elif step == "bound":
            capacity = what
            held.bound(what)
        else:
            held.drop(what)
            stamps = {block: at for block, at in stamps.items() if at >= what}
        stamps = dict(list(stamps.items())[max(len(stamps) - capacity, 0) :])

        assert held.size == len(stamps)
        fresh = now // 2
        walked = takewhile(lambda block: stamps.get(block, -1) >= fresh, asked)  # noqa: B023
        assert held.matched(asked, fresh) == len(list(walked))
        assert held.since([now, fresh]) == [
            sum(at >= moment for at in stamps.values()) for moment in (now, fresh)
        ]


def test_a_use_says_how_much_of_it_was_there_and_since_when():
    """Along the prompt, each part with the moment at which it had been asked for before."""
    held = Held(100)
    assert held.touch(chain([1, 2, 3]), 1.0) == []
    held.touch(chain([1, 2]), 2.0)

    assert held.touch(chain([1, 2, 3, 4]), 3.0) == [(2, 2.0), (3, 1.0)]
    assert held.matched(chain([1, 2, 3, 4, 5]), -math.inf) == 4


def test_what_was_new_with_a_prompt_is_taken_back_unless_it_was_asked_for_since():
    """The rest of what two prompts shared stays, and so does what others built on it."""
    held = Held(100)
    held.touch(chain([1, 2]), 1.0)
    held.touch(chain([1, 2, 3, 4, 5]), 2.0)
    held.touch(chain([1, 2, 3]), 3.0)
    held.take_back(chain([1, 2, 3, 4, 5]), 2, 2.0)
    assert held.matched(chain([1, 2, 3, 4, 5]), -math.inf) == held.size == 3

    held.touch(chain([1, 2, 3, 4]), 4.0)
    held.touch(chain([1, 2, 3, 4, 5]), 5.0)
    held.take_back(chain([1, 2, 3, 4]), 3, 4.0)
    assert held.matched(chain([1, 2, 3, 4, 5]), -math.inf) == held.size == 5
