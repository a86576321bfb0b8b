"""The state machine over sequence numbers: gaps, replays, restarts, losses."""

from kvbench.kvcache.events import END_OF_REPLAY, Message
from kvbench.kvcache.feed import Apply, EventFeed, Forget, Replay, Trust


def live(seq, life=""):
    """Return a published message; its payload says which it is."""
    return Message("t", seq, f"{life}{seq}".encode())


def apply(*seqs, life=""):
    """Return the orders that apply these batches."""
    return [Apply(f"{life}{seq}".encode()) for seq in seqs]


END = Message("", END_OF_REPLAY, b"")


def fed(feed, *messages):
    """Return all orders for published messages."""
    return [order for message in messages for order in feed.published(message)]


def test_batches_in_turn_are_applied_and_the_pod_is_exact():
    """Before the first batch nothing is known: cold."""
    feed = EventFeed()
    assert feed.trust == Trust("cold", "no batch yet")
    assert fed(feed, live(0), live(1), live(2)) == apply(0, 1, 2)
    assert feed.trust == Trust("exact", "every batch since the pod's start")


def test_a_gap_orders_a_replay_of_what_is_missing_and_holds_the_rest_back():
    """What came in meanwhile is applied after it, and the pod stays exact."""
    feed = EventFeed()
    fed(feed, live(0))
    assert fed(feed, live(3), live(4)) == [Replay(1)]
    assert feed.replaying
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replayed(live(2)) == apply(2)
    assert feed.replayed(live(3)) == apply(3)
    assert feed.replayed(END) == apply(4)
    assert not feed.replaying
    assert fed(feed, live(5)) == apply(5)
    assert (feed.trust.level, feed.gaps, feed.lost) == ("exact", 1, 0)


def test_who_joins_late_asks_for_everything():
    """The first contact with batch 7 is a gap from 0."""
    feed = EventFeed()
    assert fed(feed, live(7)) == [Replay(0)]
    assert feed.trust.level == "cold"
    for seq in range(8):
        assert feed.replayed(live(seq)) == apply(seq)
    assert feed.replayed(END) == []
    assert feed.trust.level == "exact"


def test_what_the_publisher_no_longer_keeps_is_lost_and_the_pod_degraded():
    """A replay that begins later than asked: forget, apply the rest, and say so."""
    feed = EventFeed()
    fed(feed, live(900))
    lost = "batches 0 to 897 are lost"
    assert feed.replayed(live(898)) == [Forget(lost), *apply(898)]
    assert feed.replayed(live(899)) == apply(899)
    assert feed.replayed(END) == apply(900)
    assert feed.trust == Trust(
        "degraded",
        f"{lost} until its cache is reset (POST /reset_prefix_cache) or it is restarted: no replay "
        "brought them (buffer_steps in its --kv-events-config says how many it keeps)",
    )
    assert feed.lost == 898


def test_what_a_replay_loses_on_its_way_is_asked_for_as_long_as_that_gets_on():
    """A publisher's socket drops what is sent faster than it is read, in the middle too."""
    feed = EventFeed()
    assert feed.ask() == [Replay(0)]
    assert feed.replayed(live(0)) == apply(0)
    assert feed.replayed(live(2)) == [Replay(1)]
    assert feed.trust.level == "exact"
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replayed(live(2)) == apply(2)
    assert feed.replayed(live(5)) == [Replay(3)]
    assert feed.replayed(live(5)) == [Forget("batches 3 to 4 are lost"), *apply(5)]
    assert feed.replayed(END) == []
    assert (feed.trust.level, feed.lost) == ("degraded", 2)


def test_a_replay_that_brings_nothing_ends_in_a_loss_not_in_a_loop():
    """No answer, or an empty one."""
    feed = EventFeed()
    fed(feed, live(0), live(4))
    assert feed.replay_ended() == [Forget("batches 1 to 3 are lost"), *apply(4)]
    assert feed.trust.level == "degraded"


def test_a_second_gap_behind_the_first_is_asked_for_in_turn():
    """A replay was cut off in the middle, but made progress."""
    feed = EventFeed()
    fed(feed, live(0), live(5))
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replay_ended() == [Replay(2)]


def test_without_a_replay_socket_every_gap_is_a_loss():
    """The pod is degraded at once and goes on."""
    feed = EventFeed(can_replay=False)
    assert fed(feed, live(3), live(4)) == [Forget("batches 0 to 2 are lost"), *apply(3, 4)]
    assert fed(feed, live(6)) == [Forget("batches 5 to 5 are lost"), *apply(6)]
    assert feed.lost == 4
    assert feed.trust.reason == (
        "batches 5 to 5 are lost until its cache is reset (POST /reset_prefix_cache) or it is "
        "restarted: it has no replay socket (replay= of --pod)"
    )


def test_a_cleared_cache_makes_a_degraded_pod_exact_again():
    """From then on there is nothing that one could have missed."""
    feed = EventFeed(can_replay=False)
    fed(feed, live(3))
    feed.cleared()
    assert feed.trust == Trust("exact", "every batch since the cache was cleared")
    fed(feed, live(4))
    assert feed.trust.level == "exact"


def test_numbers_that_begin_anew_are_a_restart():
    """The new engine's cache is empty: forget first, then apply."""
    feed = EventFeed()
    fed(feed, live(0), live(1), live(2))
    assert fed(feed, live(0, "new")) == [
        Forget("sequence numbers began anew"),
        *apply(0, life="new"),
    ]
    assert fed(feed, live(1, "new")) == apply(1, life="new")
    assert (feed.restarts, feed.trust.level) == (1, "exact")


def test_a_restart_that_was_missed_in_part_is_replayed_from_its_beginning():
    """The first live number of the new life is not 0."""
    feed = EventFeed()
    fed(feed, *map(live, range(9)))
    assert fed(feed, live(2, "new")) == [Forget("sequence numbers began anew"), Replay(0)]
    assert feed.replayed(live(0, "new")) == apply(0, life="new")


def test_a_message_that_comes_twice_is_taken_once():
    """The same number with the same payload is no restart."""
    feed = EventFeed()
    assert fed(feed, live(0), live(0), live(1), live(1)) == apply(0, 1)
    assert feed.restarts == 0


def test_live_messages_that_the_replay_has_brought_already_are_skipped():
    """The replay may overtake the live stream; that is no restart either."""
    feed = EventFeed()
    fed(feed, live(0), live(2))
    for seq in (1, 2, 3, 4):
        feed.replayed(live(seq))
    feed.replayed(END)
    assert fed(feed, live(3), live(4), live(5)) == apply(5)
    assert feed.restarts == 0


def test_what_waits_for_a_replay_is_bounded():
    """Beyond the bound messages are dropped and asked for again."""
    feed = EventFeed(most_pending=2)
    assert fed(feed, live(0), live(2), live(3), live(4)) == [*apply(0), Replay(1)]
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replayed(END) == apply(2, 3)
    assert fed(feed, live(5)) == [Replay(4)]


def test_a_batch_that_cannot_be_read_costs_the_trust():
    """What it said is lost; a lost removal would be believed for ever."""
    feed = EventFeed()
    fed(feed, live(0))
    assert feed.spoiled("not msgpack") == [Forget("not msgpack")]
    assert feed.trust == Trust(
        "degraded",
        "not msgpack; until its cache is reset (POST /reset_prefix_cache) or it is restarted",
    )
    assert fed(feed, live(1)) == apply(1)


def test_a_restart_that_somebody_else_noticed_asks_for_everything_again():
    """Another process on the same address, whose numbers happen to go on."""
    feed = EventFeed()
    fed(feed, live(0), live(1))
    assert feed.restarted() == [Forget("the pod was restarted")]
    assert fed(feed, live(2, "new")) == [Replay(0)]


def test_replayed_messages_nobody_asked_for_are_ignored():
    """A late answer to a replay that was given up."""
    feed = EventFeed()
    fed(feed, live(0))
    assert feed.replayed(live(1)) == []
    assert feed.replayed(END) == []
    assert fed(feed, live(1)) == apply(1)


def test_a_silence_is_asked_about_and_what_was_missed_comes():
    """The last batch was lost, and no gap shows it."""
    feed = EventFeed()
    fed(feed, live(0))
    assert feed.ask() == [Replay(1)]
    assert feed.ask() == []
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replayed(END) == []
    assert (feed.trust.level, feed.gaps) == ("exact", 0)
    assert EventFeed(can_replay=False).ask() == []


def test_while_a_gap_is_open_a_pod_is_not_exact():
    """The index lags behind what is known to have happened."""
    feed = EventFeed()
    fed(feed, live(0), live(2))
    assert feed.trust == Trust("degraded", "batch 1 is missing and asked for")
    feed.replayed(live(1))
    feed.replayed(live(2))
    assert feed.trust.level == "exact"


def test_a_gap_that_opens_during_a_replay_is_asked_for_and_not_taken_for_lost():
    """The replay's end was sent before the missing batches were published."""
    feed = EventFeed()
    assert feed.ask() == [Replay(0)]
    assert fed(feed, live(2)) == []
    assert feed.replayed(END) == [Replay(0)]
    assert feed.replayed(live(0)) == apply(0)
    assert feed.lost == 0
    assert feed.replayed(live(1)) == apply(1)
    assert feed.replayed(END) == apply(2)
    assert feed.trust.level == "exact"


def test_batches_in_turn_are_applied_while_a_replay_is_under_way():
    """A question costs no delay."""
    feed = EventFeed()
    fed(feed, live(0))
    feed.ask()
    assert fed(feed, live(1)) == apply(1)


def broken_after(*seqs):
    """Return a feed to which these batches came before its connection broke."""
    feed = EventFeed()
    fed(feed, *map(live, seqs))
    assert feed.broken("it broke") == []
    return feed


def test_the_same_engine_behind_a_new_connection_is_recognised_by_its_last_batch():
    """What came in between is applied, live batches only after that."""
    feed = broken_after(0, 1)
    assert feed.trust.level == "degraded"
    assert fed(feed, live(3)) == []
    assert feed.ask() == [Replay(1)]
    assert feed.replayed(live(1)) == []
    assert feed.replayed(live(2)) == apply(2)
    assert feed.replayed(live(3)) == apply(3)
    assert feed.replayed(END) == []
    assert (feed.trust.level, feed.restarts) == ("exact", 0)


def test_another_engine_behind_a_new_connection_is_recognised_too():
    """Another batch of that number, or none: everything is asked for anew."""
    for first in (live(1, "b"), END, live(5, "b")):
        feed = broken_after(0, 1)
        feed.ask()
        assert feed.replayed(first) == [Forget("another engine answers"), Replay(0)]
        assert feed.replayed(live(0, "b")) == apply(0, life="b")
        assert feed.restarts == 1


def test_who_cannot_be_asked_is_forgotten_when_its_connection_breaks():
    """No replay socket, nothing applied, or the last batch lost."""
    assert EventFeed().broken("gone") == [Forget("gone")]
    mute = EventFeed(can_replay=False)
    fed(mute, live(0))
    assert mute.broken("gone") == [Forget("gone")]


def test_an_engine_that_is_not_recognised_yet_stays_in_doubt():
    """The replay was not answered; it is asked again."""
    feed = broken_after(0)
    feed.ask()
    fed(feed, live(1))
    assert feed.replay_ended() == []
    assert feed.trust.level == "degraded"
    assert feed.ask() == [Replay(0)]
    assert feed.replayed(live(0)) == []
    assert feed.replayed(END) == apply(1)
    assert feed.trust.level == "exact"


def test_a_live_batch_that_the_replay_has_brought_is_skipped_only_if_it_is_the_same():
    """All that was known came by replay; then the engine begins anew behind the same socket."""
    feed = EventFeed()
    feed.ask()
    for seq in range(3):
        feed.replayed(live(seq))
    feed.replayed(END)
    assert fed(feed, live(1)) == []
    assert fed(feed, live(0, "b"))[0] == Forget("sequence numbers began anew")
    assert feed.trust.level == "exact"

    feed = EventFeed()
    feed.ask()
    for seq in range(3):
        feed.replayed(live(seq))
    feed.replayed(END)
    assert fed(feed, live(0, "b")) == [
        Forget("sequence numbers began anew"),
        *apply(0, life="b"),
    ]
