"""One cause for each difference between what was predicted and what was delivered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvbench.policies.prediction import CAUSES, Evidence, cause_of

SHORT = Evidence(
    exact=True, predicted=96, delivered=32, our_tokens=120, their_tokens=120, block=16, indexed=96
)


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (replace(SHORT, delivered=96), "none"),
        (replace(SHORT, exact=False), "estimate"),
        (replace(SHORT, their_tokens=121), "template"),
        (replace(SHORT, predicted=112, delivered=96), "last_block"),
        (replace(SHORT, predicted=112, delivered=96, evicted=True), "evicted"),
        (replace(SHORT, evicted=True, copies=2), "evicted"),
        (replace(SHORT, copies=2), "duplicate"),
        (replace(SHORT, indexed=32), "late"),
        (replace(SHORT, exact_still=False), "late"),
        (replace(SHORT, delivered=112), "late"),
        (SHORT, "other"),
    ],
)
def test_each_difference_has_its_cause(evidence, cause):
    """The first that fits."""
    assert cause_of(evidence) == cause


@given(
    st.builds(
        Evidence,
        exact=st.booleans(),
        predicted=st.integers(0, 100),
        delivered=st.integers(0, 100),
        our_tokens=st.integers(0, 100),
        their_tokens=st.none() | st.integers(0, 100),
        block=st.integers(1, 16),
        indexed=st.integers(0, 100),
        evicted=st.booleans(),
        copies=st.integers(0, 3),
        exact_still=st.booleans(),
    )
)
def test_every_difference_has_a_cause_and_no_difference_none(evidence):
    """Of a closed set: it labels a metric."""
    cause = cause_of(evidence)
    assert cause in CAUSES
    assert (cause == "none") == (evidence.predicted == evidence.delivered)
