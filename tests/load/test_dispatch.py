"""The dispatcher sends every turn at its time, and files each exactly once."""

from fakes_load import FakeDesk, FakeSender, VirtualTimers, conversations, plan, turn
from hypothesis import given
from hypothesis import strategies as st

from kvbench.clock import VirtualClock
from kvbench.load.dispatch import HORIZON, Dispatcher
from kvbench.load.witness import Witness

START = 100.0


class Stage:
    """A dispatcher with everything around it faked."""

    def __init__(self, whole, latency=lambda _request: 1.0, max_in_flight=1000):
        """Set the stage, with second 0 a little ahead."""
        self.clock = VirtualClock(START - 1.0)
        self.timers = VirtualTimers(self.clock)
        self.sender = FakeSender(self.clock, self.timers, latency)
        self.desk = FakeDesk(self.clock)
        self.witness = Witness()
        self.finished = 0
        self.dispatcher = Dispatcher(
            whole,
            start=START,
            clock=self.clock,
            timers=self.timers,
            sender=self.sender,
            desk=self.desk,
            witness=self.witness,
            max_in_flight=max_in_flight,
            on_finished=self._finish,
        )

    def _finish(self):
        """Count."""
        self.finished += 1

    def run(self, until=float("inf")):
        """Let it run to the end, or to a second of the run."""
        self.dispatcher.begin()
        self.timers.run(START + until)
        return self

    def sent(self):
        """Return (second of the run, index) of what was sent, in order."""
        return [(round(at - START, 6), int(request)) for at, request in self.sender.posted]

    def filed(self):
        """Return the indices that were filed, sorted."""
        return sorted(index for index, _, _ in self.desk.filed)


def test_sessions_begin_at_their_times_however_slow_the_answers_are():
    """Answers take a minute here, sessions come every half second."""
    stage = Stage(conversations(4, 1, every=0.5, think=0.0), latency=lambda _: 60.0).run()
    assert stage.sent() == [(0.0, 0), (0.5, 1), (1.0, 2), (1.5, 3)]


def test_a_later_turn_waits_for_its_predecessor_and_then_thinks():
    """The pause is counted from the end of the answer."""
    stage = Stage(conversations(2, 2, every=0.5, think=0.25), latency=lambda _: 2.0).run()
    assert stage.sent() == [(0.0, 0), (0.5, 1), (2.25, 2), (2.75, 3)]


def test_the_intended_time_of_a_later_turn_counts_from_the_end_of_its_predecessor():
    """So a slow server does not make the client look late."""
    stage = Stage(conversations(1, 2, every=1.0, think=0.25), latency=lambda _: 2.0).run()
    assert [(index, intended) for index, intended, _ in stage.desk.filed] == [(0, 0.0), (1, 2.25)]


def test_a_turn_that_fails_does_not_end_its_session():
    """Every planned turn has a record."""
    stage = Stage(conversations(1, 3, every=1.0, think=0.0))
    stage.sender.latency = lambda _: 0.1
    stage.run()
    assert stage.filed() == [0, 1, 2]
    assert stage.finished == 1


def test_a_turn_that_finds_no_room_is_sent_late_and_keeps_its_intended_time():
    """Lateness is counted against the plan, not against the room."""
    stage = Stage(conversations(3, 1, every=0.1, think=0.0), max_in_flight=1).run()
    assert stage.sent() == [(0.0, 0), (1.0, 1), (2.0, 2)]
    assert [(i, round(when, 6)) for i, when, _ in stage.desk.filed] == [(0, 0), (1, 0.1), (2, 0.2)]
    assert stage.witness.testify(0).lateness_max_s == 1.8


def test_a_turn_that_is_held_back_is_due_and_not_begun():
    """The intended rate runs ahead of the achieved one."""
    stage = Stage(conversations(3, 1, every=0.1, think=0.0), max_in_flight=1)
    seen = []
    stage.witness.opened = lambda _: seen.append((stage.witness.due, stage.witness.begun))
    stage.run()
    assert seen[0] == (1, 1)
    assert (3, 1) in seen
    assert (stage.witness.due, stage.witness.begun) == (3, 3)


def test_lateness_of_punctual_turns_is_zero():
    """On a clock that only moves when nothing is to be done."""
    stage = Stage(conversations(5, 2, every=0.3, think=0.1)).run()
    assert stage.witness.testify(0).lateness_max_s < 1e-9
    assert stage.witness.testify(0).turns == 10


def test_requests_are_built_before_they_are_due():
    """Building takes time that a send must not wait for."""
    stage = Stage(conversations(5, 1, every=1.0, think=0.0)).run()
    assert all(stage.desk.built[i] < at + START for at, i in stage.sent())


def test_requests_are_not_built_earlier_than_the_horizon():
    """Requests that lie ready take memory."""
    stage = Stage(conversations(9, 1, every=1.0, think=0.0)).run()
    for at, i in stage.sent():
        assert at + START - stage.desk.built[i] <= HORIZON


def test_the_request_of_a_waiting_turn_is_built_while_its_predecessor_is_answered():
    """It may be due the moment the answer has ended."""
    stage = Stage(conversations(1, 2, every=1.0, think=0.0), latency=lambda _: 3.0).run()
    assert stage.desk.built[1] < START + 3.0


def test_with_real_answers_a_request_is_built_only_after_the_answer_was_filed():
    """Its text repeats what was answered."""
    whole = conversations(3, 3, every=0.1, think=0.0, history="answers")
    stage = Stage(whole)
    filed_before: dict[int, set[int]] = {}
    build = stage.desk.request

    def request(asked):
        filed_before[asked.index] = {index for index, _, _ in stage.desk.filed}
        return build(asked)

    stage.desk.request = request
    stage.run()
    for asked in whole.turns:
        earlier = {t.index for t in whole.turns if t.session == asked.session}
        earlier = {i for i in earlier if i < asked.index}
        assert earlier <= filed_before[asked.index]


def test_connections_are_asked_for_ahead_of_the_turns_that_need_them():
    """A handshake would make the first turns late."""
    stage = Stage(conversations(4, 1, every=0.0, think=0.0)).run()
    assert max(stage.sender.reserved) == 4


def test_a_stop_cuts_what_was_sent_and_files_the_rest_as_not_sent():
    """In-flight turns were sent, so they are not 'not_sent'."""
    whole = conversations(3, 2, every=1.0, think=0.5)
    stage = Stage(whole, latency=lambda _: 10.0).run(until=1.5)
    stage.dispatcher.stop("enough")
    assert stage.filed() == [0, 1, 2, 3, 4, 5]
    assert stage.finished == 1
    outcome = {index: reply and reply.failure for index, _, reply in stage.desk.filed}
    assert outcome == {0: ("cut", "enough"), 1: ("cut", "enough"), **dict.fromkeys((2, 3, 4, 5))}
    stage.timers.run()
    assert len(stage.sender.posted) == 2


def test_a_stop_before_the_start_sends_nothing():
    """All turns get their record all the same."""
    stage = Stage(conversations(2, 2, every=1.0, think=0.5)).run(until=-0.5)
    stage.dispatcher.stop("enough")
    assert (stage.sender.posted, stage.filed()) == ([], [0, 1, 2, 3])


def test_a_run_that_breaks_off_files_nothing_more_and_is_finished():
    """What writes records is broken, so nothing is written."""
    stage = Stage(conversations(3, 1, every=0.0, think=0.0), latency=lambda _: None).run(until=1.0)
    stage.dispatcher.abandon()
    assert (stage.filed(), stage.finished) == ([], 1)


def test_an_empty_plan_is_finished_at_once():
    """There is nothing to wait for."""
    assert Stage(plan()).run().finished == 1


def test_the_delay_of_timers_is_watched():
    """A virtual clock has none."""
    stage = Stage(plan(turn(0, session="a", at=0.5))).run()
    assert stage.witness.testify(0).loop_delay_max_s == 0.0


_latencies = st.one_of(st.none(), st.floats(0, 5, allow_nan=False))


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    latencies=st.lists(_latencies, min_size=24, max_size=24),
    think=st.sampled_from([0.0, 0.3]),
    room=st.integers(1, 5),
    stop_at=st.floats(-1, 12),
    history=st.sampled_from(["planned", "answers"]),
)
def test_every_turn_is_filed_exactly_once_whatever_happens(
    lengths, latencies, think, room, stop_at, history
):
    """Slow answers, no answers, no room, a stop at any moment: one record each."""
    order = [(s, n) for s, count in enumerate(lengths) for n in range(1, count + 1)]
    turns = (
        turn(i, session=str(s), number=n, at=s * 0.4 if n == 1 else None, think=think)
        for i, (s, n) in enumerate(order)
    )
    whole = plan(*turns, history=history)
    stage = Stage(whole, latency=lambda request: latencies[int(request)], max_in_flight=room)
    stage.run(until=stop_at)
    stage.dispatcher.stop("time is up")
    stage.timers.run()
    assert stage.filed() == [t.index for t in whole.turns]
    assert stage.finished == 1
    sent = {index for _, index in stage.sent()}
    assert all((reply is not None) == (index in sent) for index, _, reply in stage.desk.filed)


def test_what_has_come_of_open_answers_is_parsed_when_there_is_nothing_else_to_do():
    """So that it does not lie in memory, nor wait for the moment when all of them end."""
    stage = Stage(conversations(20, 1, every=0.001, think=0.0), latency=lambda _: 5.0)
    stage.run(until=1.0)
    replies = [reply for reply, _ in stage.sender.open.values()]
    for reply in replies:
        reply.unread = 3

    stage.timers.run(START + 2.0)

    assert [reply.parsed for reply in replies] == [3] * 20
    stage.timers.run()
    assert stage.finished == 1
    assert stage.dispatcher._open == {}
