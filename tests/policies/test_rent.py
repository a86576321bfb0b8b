"""Rent for staying with a busy pod: it adds up, fades, and is forgotten when a copy was bought."""

from __future__ import annotations

import math

import pytest

from kvbench.policies.rent import Rents


def test_nothing_was_paid_for_a_beginning_that_nobody_knows():
    """Not on any pod."""
    assert Rents().paid(7, 0.0) == {}


def test_what_was_paid_fades_by_e_with_each_quarter_of_a_turn_of_the_caches():
    """A copy would not stay for ever."""
    rents = Rents()
    rents.pay(7, {"a": 2.0, "b": 1.0}, 10.0)

    assert rents.paid(7, 10.0) == {"a": 2.0, "b": 1.0}
    assert rents.paid(7, 10.25) == pytest.approx({"a": 2.0 / math.e, "b": 1.0 / math.e})
    assert rents.paid(8, 10.25) == {}


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
