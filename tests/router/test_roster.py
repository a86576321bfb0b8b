"""Which pods there should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.router.roster import PEOPLE, Roster


def urls(names: str) -> list[str]:
    """Return URLs of pods with these one-letter hosts."""
    return [f"http://{name}:1" for name in names]


def wanted(roster: Roster) -> str:
    """Return the hosts that are wanted."""
    return "".join(sorted(member.address.host for member in roster.wanted().values()))


def test_sources_are_joined_and_each_replaces_its_own():
    """A pod that two name stays while one does."""
    roster = Roster()
    roster.name("flags", urls("ab"))
    roster.name("file", urls("bc"))
    assert wanted(roster) == "abc"

    roster.name("file", urls("e"))
    assert wanted(roster) == "abe"
    roster.name("flags", [])
    assert wanted(roster) == "e"


def test_a_source_with_a_bad_url_changes_nothing():
    """All or nothing."""
    roster = Roster()
    roster.name("file", urls("ab"))
    with pytest.raises(InputError, match="expected a URL"):
        roster.name("file", ["http://c:1", "nonsense"])

    assert wanted(roster) == "ab"


def test_a_pod_removed_by_hand_stays_away_until_its_sources_have_dropped_it():
    """A file that is read again must not bring it back."""
    roster = Roster()
    roster.name("file", urls("ab"))
    roster.remove("a:1")
    roster.name("file", urls("abc"))
    assert wanted(roster) == "bc"

    roster.name("file", urls("b"))
    roster.name("file", urls("ab"))
    assert wanted(roster) == "ab"


def test_a_pod_may_be_added_by_hand_and_removed_again():
    """Also one that had been removed."""
    roster = Roster()
    roster.name("flags", urls("a"))
    roster.remove("a:1")
    assert roster.add("http://a:1") == "a:1"
    assert roster.add("http://[::1]:7/") == "[::1]:7"
    assert sorted(roster.wanted()) == ["[::1]:7", "a:1"]

    roster.remove("[::1]:7")
    assert sorted(roster.wanted()) == ["a:1"]
    for name in ("[::1]:7", "b:1"):
        with pytest.raises(KeyError):
            roster.remove(name)


def test_a_pod_that_is_added_again_keeps_its_events_unless_it_has_others():
    """So whoever adds pods again and again changes nothing."""
    roster = Roster()
    roster.name("flags", ["http://a:1,events=tcp://a:5557"])
    before = roster.wanted()["a:1"]

    roster.add("http://a:1")
    assert roster.wanted()["a:1"] == before
    roster.add("http://a:1,events=tcp://a:5558")
    other = roster.wanted()["a:1"]
    assert other != before
    roster.add("http://a:1")
    assert roster.wanted()["a:1"] == other
    roster.add("https://a:1")
    assert roster.wanted()["a:1"].events is None


def test_of_two_urls_with_one_name_the_first_counts():
    """Host and port are what a pod is called."""
    roster = Roster()
    roster.name("flags", ["http://a:1/base"])
    roster.name("file", ["https://a:1"])

    assert [member.address.url for member in roster.wanted().values()] == ["http://a:1/base"]


SOURCES = st.sampled_from(["flags", "file", "dns"])


@given(
    st.lists(
        st.one_of(
            st.tuples(SOURCES, st.text("abc")),
            st.tuples(st.just("add"), st.sampled_from("abc")),
            st.tuples(st.just("remove"), st.sampled_from("abc")),
        )
    )
)
def test_nobody_is_wanted_whom_no_source_names(history):
    """And whoever is named and was not removed, is."""
    roster = Roster()
    named: dict[str, set[str]] = {PEOPLE: set()}
    for act, pods in history:
        if act == "add":
            roster.add(f"http://{pods}:1")
            named[PEOPLE].add(pods)
        elif act == "remove":
            if pods in wanted(roster):
                roster.remove(f"{pods}:1")
                named[PEOPLE].discard(pods)
                assert pods not in wanted(roster)
        else:
            roster.name(act, urls(pods))
            named[act] = set(pods)
        assert set(wanted(roster)) <= set().union(*named.values())
        assert named[PEOPLE] <= set(wanted(roster))
        if not any(act == "remove" for act, _ in history):
            assert set(wanted(roster)) == set().union(*named.values())
