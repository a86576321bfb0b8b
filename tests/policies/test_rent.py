"""Rent for staying with a busy pod: it adds up, fades, and is forgotten when a copy was bought."""

from __future__ import annotations

import math

import pytest

from kvbench.policies.rent import Rents


def test_nothing_was_paid_for_a_beginning_that_nobody_knows():
    """Not on any pod."""
    assert Rents().paid(7, 0.0) == {}


def test_what_was_paid_fades_by_e_with_each_sixteenth_of_a_turn_of_the_caches():
    """A copy would not stay for ever."""
    rents = Rents()
    rents.pay(7, {"a": 2.0, "b": 1.0}, 10.0)

    assert rents.paid(7, 10.0) == {"a": 2.0, "b": 1.0}
    assert rents.paid(7, 10.0625) == pytest.approx({"a": 2.0 / math.e, "b": 1.0 / math.e})
    assert rents.paid(8, 10.0625) == {}


def test_who_has_bought_begins_anew():
    """The next copy is paid for again."""
    rents = Rents()
    rents.pay(7, {"a": 2.0}, 0.0)
    rents.bought(7)

    assert rents.paid(7, 0.0) == {}


def test_of_many_beginnings_those_are_remembered_that_were_paid_for_last():
    """4,096 of them, however many there are."""
    rents = Rents()
    for prefix in range(5000):
        rents.pay(prefix, {"a": 1.0}, 0.0)
        rents.pay(0, {"a": 1.0}, 0.0)

    known = [prefix for prefix in range(5000) if rents.paid(prefix, 0.0)]
    assert known == [0, *range(5000 - 4095, 5000)]


def test_a_conversation_pays_for_the_beginning_that_it_found_cached_at_first():
    """However far it has gone on since."""
    rents = Rents()
    rents.goes_on(7, 64, 8)
    rents.goes_on(8, 128, 9)

    assert rents.beginning(9, 192) == (7, 64)
    assert rents.beginning(7, 64) == (7, 64)


def test_a_prompt_that_is_all_cached_goes_on_with_nothing():
    """It ends where it began."""
    rents = Rents()
    rents.goes_on(7, 64, 7)

    assert rents.beginning(7, 64) == (7, 64)


def test_of_many_conversations_those_are_remembered_that_went_on_last():
    """16,384 of them; the others pay for what they find."""
    rents = Rents()
    for number in range(20_000):
        rents.goes_on(-1, 64, number)

    assert rents.beginning(20_000 - 16_384, 128) == (-1, 64)
    assert rents.beginning(20_000 - 16_385, 128) == (20_000 - 16_385, 128)
