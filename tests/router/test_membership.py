"""The pods."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.http.address import parse_address
from kvbench.router.membership import Lease, Membership


def members(*names: str) -> Membership:
    """Return pods of these host names."""
    return Membership(parse_address(f"http://{name}:1") for name in names)


def names(membership: Membership, now: float = 0.0, without: tuple[str, ...] = ()) -> str:
    """Return the host names of the pods on offer."""
    return "".join(pod.address.host for pod in membership.offered(now, without))


def test_all_pods_are_offered_before_anything_is_known():
    """A pod that has not been probed is taken to be up."""
    membership = members("a", "b", "c")

    assert names(membership) == "abc"
    assert names(membership, without=("b:1",)) == "ac"


def test_a_pod_that_fails_thrice_is_left_alone_and_tried_after_a_second():
    """The others go on."""
    membership = members("a", "b")
    pod = membership.pods["a:1"]
    for _ in range(3):
        membership.failed(pod, "broke", now=10.0)

    assert names(membership, 10.5) == "b"
    assert names(membership, 11.0) == "ab"
    membership.answered(pod)
    membership.succeeded(pod)
    assert (pod.trouble, names(membership, 10.5)) == (None, "ab")


def test_the_log_says_when_a_pod_is_left_alone_and_when_it_answers_again(caplog):
    """Once a pause, however many fail; of a pod that failed now and then, nothing."""
    caplog.set_level(logging.INFO, "kvbench")
    membership = members("a", "b")
    pod = membership.pods["a:1"]
    membership.failed(pod, "broke", now=10.0)
    membership.succeeded(pod)
    assert caplog.records == []
    for moment in (20.0, 20.0, 20.0, 20.1, 21.5, 21.6):
        membership.failed(pod, "broke", now=moment)
    membership.succeeded(pod)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "a:1 is left alone for 1 s if others can: broke"),
        ("WARNING", "a:1 is left alone for 2 s if others can: broke"),
        ("INFO", "a:1 answers again"),
    ]
    caplog.clear()
    for _ in range(3):
        membership.failed(pod, "broke", now=30.0)
    membership.probed(pod, "connection refused", refused=True)
    membership.probed(pod, None)
    assert len(caplog.records) == 1, "of a pod that was down, who probes it says that it is up"


def test_a_pod_is_doubted_after_five_refusals_in_a_row_and_judged_by_another():
    """Nothing but what another pod says of the same prompt makes a 4xx a failure."""
    membership = members("a", "b")
    pod = membership.pods["a:1"]
    for _ in range(4):
        membership.refused(pod)
    assert not membership.doubts(pod)
    membership.refused(pod)
    assert [membership.doubts(pod) for _ in range(3)] == [True, False, False]
    membership.judged(pod, "b:1", 400, now=10.0)
    assert (membership.doubts(pod), pod.trouble) == (False, None)

    for _ in range(100):
        membership.refused(pod)
    assert (names(membership, 10.0), pod.trouble) == ("ab", None)
    for _ in range(3):
        assert membership.doubts(pod)
        membership.judged(pod, "b:1", 200, now=10.0)
    assert (names(membership, 10.0), names(membership, 11.0)) == ("b", "ab")
    assert pod.trouble == "refuses prompts with 4xx that b:1 answers"
    membership.succeeded(pod)
    assert (membership.doubts(pod), names(membership, 11.0)) == (False, "ab")


def test_a_refused_probe_is_believed_at_once_and_others_after_three():
    """Nobody listens; or somebody is busy."""
    membership = members("a", "b")
    a, b = membership.pods.values()
    membership.probed(a, "connection refused", refused=True)
    membership.probed(b, "did not answer in time")
    membership.probed(b, "did not answer in time")
    assert names(membership) == "b"

    membership.probed(b, "did not answer in time")
    assert names(membership) == ""
    membership.probed(a, None)
    assert names(membership) == "a"


def test_a_pod_that_still_streams_is_tried_again_after_its_pause():
    """Its stream is no trial; the trial is, as long as it lasts."""
    membership = members("a", "b")
    pod = membership.pods["a:1"]
    stream = Lease(pod, 0)
    for _ in range(3):
        Lease(pod, 0).release()
        membership.failed(pod, "answered 500", 0.0)
    assert pod not in membership.offered(0.5)
    assert pod in membership.offered(1.0)
    trial = Lease(pod, 0)
    assert pod not in membership.offered(1.0)
    trial.release()
    membership.failed(pod, "answered 500", 1.5)
    assert pod in membership.offered(3.5)
    stream.release()


def test_a_successful_probe_after_failed_ones_closes_the_breaker():
    """A pod that came back need not wait for its pause to end."""
    membership = members("a")
    pod = membership.pods["a:1"]
    for _ in range(3):
        membership.failed(pod, "broke", now=0.0)
    membership.probed(pod, "connection refused", refused=True)
    assert names(membership) == ""

    membership.probed(pod, None)

    assert (names(membership), pod.trouble) == ("a", None)


def test_the_breakers_never_close_the_house_while_probes_succeed():
    """Requests that every pod answers with 500 harm themselves, not all others."""
    membership = members("a", "b")
    for pod in membership.pods.values():
        membership.probed(pod, None)
        for _ in range(3):
            membership.failed(pod, "answered 500", now=0.0)

    assert names(membership, 0.5) == "ab"


def test_why_nobody_names_every_pod_and_its_trouble():
    """A person reads it."""
    membership = members("a", "b")
    for pod in membership.pods.values():
        membership.probed(pod, "connection refused", refused=True)

    assert membership.why_nobody() == (
        "No pod can take the request. a:1: connection refused; b:1: connection refused."
    )


def test_pods_come_and_go():
    """The name of one that went may be another's; with none there is nobody."""
    membership = members("a", "b")
    gone = membership.remove("a:1")
    assert names(membership) == "b"

    again = membership.add(gone.address)
    assert again is not gone
    assert names(membership) == "ba"
    for name in ("a:1", "b:1"):
        membership.remove(name)
    assert names(membership) == ""
    assert membership.why_nobody() == "No pod can take the request. There is none."
    with pytest.raises(KeyError):
        membership.remove("a:1")


def test_a_drained_pod_is_offered_nothing_even_if_it_is_the_last():
    """And is offered again when that is taken back."""
    membership = members("a", "b")
    for pod in membership.pods.values():
        membership.probed(pod, None)
    membership.drain("a:1")
    assert names(membership) == "b"

    membership.failed(membership.pods["b:1"], "broke", 0.0)
    membership.drain("b:1")
    assert names(membership) == ""
    assert membership.why_nobody() == ("No pod can take the request. a:1: draining; b:1: draining.")
    membership.drain("a:1", draining=False)
    assert names(membership) == "a"


def test_the_listing_tells_health_apart_from_draining():
    """A drained pod is as healthy as it was; one that nobody answers at is not, drained or not."""
    membership = members("a", "b", "c")
    membership.drain("a:1")
    membership.drain("b:1")
    membership.probed(membership.pods["b:1"], "connection refused", refused=True)

    seen = [(pod["healthy"], pod["draining"], pod["trouble"]) for pod in membership.listing(0.0)]
    assert seen == [
        (True, True, None),
        (False, True, "connection refused"),
        (True, False, None),
    ]
    assert names(membership) == "c"


def test_only_some_pods_may_be_meant():
    """Those that serve a model; nobody else stands in for them."""
    membership = members("a", "b", "c")
    membership.probed(membership.pods["b:1"], "connection refused", refused=True)

    assert [pod.name for pod in membership.offered(0.0, among={"b:1", "c:1"})] == ["c:1"]
    assert membership.offered(0.0, ("c:1",), {"b:1", "c:1"}) == []
    assert membership.why_nobody({"b:1"}) == (
        "No pod can take the request. b:1: connection refused."
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "first", "release"]), st.integers(0, 5)), max_size=60
    )
)
def test_what_is_in_flight_is_what_was_taken_and_not_given_back(acts):
    """After any history of first tokens and releases, repeated or out of order."""
    pod = members("a").pods["a:1"]
    leases: list[Lease] = []
    waiting: dict[int, int] = {}
    held: set[int] = set()
    for act, which in acts:
        if act == "take":
            held.add(len(leases))
            waiting[len(leases)] = 100 + which
            leases.append(Lease(pod, 100 + which))
        elif leases:
            number = which % len(leases)
            waiting.pop(number, None)
            if act == "first":
                leases[number].first_token()
            else:
                leases[number].release()
                held.discard(number)

        assert pod.state.in_flight == len(held)
        assert pod.state.in_flight_prefill_tokens == sum(waiting.values())
    assert pod.requests == len(leases)
