"""The desk builds requests, files rows, and remembers the answers that later turns repeat."""

from fakes_load import conversations, turn

from kvbench.load.desk import Desk
from kvbench.load.reply import Reply
from kvbench.load.request import RequestForm
from kvbench.load.target import Target
from kvbench.openai.stream import StreamFold
from kvbench.records.unsent import Expected


class EchoBodies:
    """Bodies that say what they were made from."""

    def body(self, asked, model, *, answers, cache_salt=None):
        """Return the arguments."""
        return f"{asked.index} {model} {dict(answers)} {cache_salt}".encode()

    def prompt_text(self, asked, answers):
        """Return a prompt that says which turn it is of, and the answers."""
        return f"prompt of {asked.index} {' '.join(answers.values())}"


def desk(whole, rows, **more):
    """Return a desk that files into `rows`."""
    arguments = {
        "bodies": EchoBodies(),
        "form": RequestForm(Target.parse("http://pod"), "chat"),
        "model": "tiny",
        "salt": "run",
        "run_id": "run",
        "worker": 1,
        "start": 100.0,
        "pod": "pod:80",
        "expected": {0: Expected(10, 4)},
        "write": rows.append,
        **more,
    }
    return Desk(whole, **arguments)


def answer(text: str, *, done: bool = True) -> Reply:
    """Return a reply with this text."""
    reply = Reply(StreamFold(), sent=100.0, end=101.0, status=200)
    reply.add(
        100.5, b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()
    )
    if done:
        reply.add(100.5, b"data: [DONE]\n\n")
    return reply


def body_of(request: bytes) -> str:
    """Return the body of a request."""
    return request.split(b"\r\n\r\n", 1)[1].decode()


def test_a_request_is_made_of_the_turn_the_model_and_the_salt():
    """Its id is the run's and the turn's."""
    request = desk(conversations(1, 1, every=1, think=0), []).request(turn(0, session="s0"))
    assert body_of(request) == "0 tiny {} run"
    assert b"x-request-id: run-0\r\n" in request


def test_every_turn_becomes_a_row_sent_or_not():
    """With what was expected of it."""
    rows = []
    whole = conversations(2, 1, every=1, think=0)
    office = desk(whole, rows)
    office.file(whole.turns[0], 0.0, answer("a"))
    office.file(whole.turns[1], 1.0, None)
    assert [(row.index, row.error, row.worker) for row in rows] == [
        (0, None, 1),
        (1, "not_sent", 1),
    ]
    assert (rows[0].planned_prompt_tokens, rows[0].ceiling_tokens) == (10, 4)
    assert (rows[1].planned_prompt_tokens, rows[1].ceiling_tokens) == (None, None)


def test_later_turns_repeat_real_answers_if_the_plan_wants_them():
    """Under the keys that the plan has for them."""
    whole = conversations(1, 3, every=1, think=0, history="answers")
    office = desk(whole, [])
    for planned, text in zip(whole.turns, ("one", "two"), strict=False):
        office.file(planned, 0.0, answer(text))
    expected = {"a/s0/1": "one", "a/s0/2": "two"}
    assert body_of(office.request(whole.turns[2])) == f"2 tiny {expected} run"


def test_planned_text_stands_for_an_answer_that_did_not_come():
    """A half answer is none."""
    whole = conversations(1, 2, every=1, think=0, history="answers")
    office = desk(whole, [])
    office.file(whole.turns[0], 0.0, answer("ha", done=False))
    assert body_of(office.request(whole.turns[1])) == "1 tiny {} run"


def test_answers_are_kept_only_as_long_as_a_turn_may_repeat_them():
    """Memory is for sessions that are on."""
    whole = conversations(1, 2, every=1, think=0, history="answers")
    office = desk(whole, [])
    for planned in whole.turns:
        office.file(planned, 0.0, answer("x"))
    assert office._answers == {}


def test_answers_are_not_kept_for_a_plan_that_repeats_planned_text():
    """There is nobody to read them."""
    whole = conversations(1, 2, every=1, think=0)
    office = desk(whole, [])
    office.file(whole.turns[0], 0.0, answer("x"))
    assert office._answers == {}
