"""What a router has answered, in words."""

from __future__ import annotations

from kvbench.router.meters import Meters
from kvbench.router.totals import totals


def test_requests_are_summed_over_pods_by_how_they_ended():
    """Those that pods answered, and those that the router refused."""
    meters = Meters()
    assert totals(meters) == "0 passed on, 0 refused"
    for pod, status, times in (
        ("a", "2xx", 1200),
        ("b", "2xx", 34),
        ("b", "gone", 1),
        ("b", "5xx", 1),
        ("", "4xx", 2),
    ):
        meters.requests.add(pod, status, by=times)
    meters.refusals.add("429", by=2)
    assert totals(meters) == "1,236 passed on (2xx: 1,234, 5xx: 1, gone: 1), 2 refused (429: 2)"


def test_what_pods_answered_that_have_left_since_counts_too():
    """Their metrics are gone, and one of them is back."""
    meters = Meters()
    for pod, status, times in (("a", "2xx", 3), ("a", "gone", 1), ("b", "2xx", 2), ("", "4xx", 2)):
        meters.requests.add(pod, status, by=times)
    meters.forget_pod("a")
    meters.requests.add("a", "2xx", by=10)
    meters.forget_pod("a")

    assert (
        meters.registry.get_sample_value(
            "kvbench_router_requests_total", {"pod": "a", "status": "2xx"}
        )
        is None
    )
    assert totals(meters) == "16 passed on (2xx: 15, gone: 1), 0 refused"
