"""The desk: builds requests out of planned turns, and files what became of them as rows.

It keeps the answers of sessions whose later turns repeat them ("answers" history); an answer is
dropped with the last turn of its session. Whatever was filed lies in the row file when `file`
returns, and, for those who watch, in the outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvbench.load.outcome import Expected, sent, unsent
from kvbench.load.reply import Reply
from kvbench.openai.stream import StreamFold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvbench.load.request import RequestForm
    from kvbench.records.schema import TurnRecord
    from kvbench.workload.plan import Plan, PlannedTurn


class Bodies(Protocol):
    """Makes the JSON of a request: `kvbench.workload.render.Renderer`, or a fake."""

    def body(
        self,
        turn: PlannedTurn,
        model: str,
        *,
        answers: Mapping[str, str],
        cache_salt: str | None = None,
    ) -> bytes:
        """Return the body of a request."""
        ...


class Desk:
    """The desk of one worker in one run.

    Args:
        plan: What the worker sends.
        bodies: Makes bodies.
        form: Puts heads before them.
        model: Model to ask for.
        salt: Cache salt of the run; None shares the caches with everybody.
        run_id: Begins the id of every request.
        worker: Number of the worker, from 0.
        start: Second 0, on the clock of the replies.
        pod: Who answers, unless the response says otherwise.
        expected: By index of the turn.
        write: Takes each row; must have it safe when it returns.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        bodies: Bodies,
        form: RequestForm,
        model: str,
        salt: str | None,
        run_id: str,
        worker: int,
        start: float,
        pod: str,
        expected: Mapping[int, Expected],
        write: Callable[[TurnRecord], None],
    ) -> None:
        self._bodies = bodies
        self._form = form
        self._model = model
        self._salt = salt
        self._run_id = run_id
        self._worker = worker
        self._start = start
        self._pod = pod
        self._expected = expected
        self._write = write
        self._answers: dict[str, dict[str, str]] = {}  # by session, by answer key
        self._last: dict[str, int] = {}  # session to its last turn
        if plan.history == "answers":
            for turn in plan.turns:
                self._last[turn.session] = max(turn.turn, self._last.get(turn.session, 0))

    def request(self, turn: PlannedTurn) -> bytes:
        """Return the bytes that ask for `turn`."""
        answers = self._answers.get(turn.session, {})
        body = self._bodies.body(turn, self._model, answers=answers, cache_salt=self._salt)
        return self._form.post(self._request_id(turn), turn.session, body)

    def reply(self) -> Reply:
        """Return an empty reply."""
        return Reply(StreamFold())

    def file(self, turn: PlannedTurn, intended: float, reply: Reply | None) -> None:
        """Write the row of a turn, and remember its answer if a later turn repeats it."""
        row = unsent(
            turn,
            worker=self._worker,
            intended=intended,
            expected=self._expected.get(turn.index, Expected()),
            request_id=self._request_id(turn),
        )
        if reply is not None:
            reply.settle()
            row = sent(row, reply, reply.fold, start=self._start, pod=self._pod)
            self._remember(turn, reply)
        self._write(row)

    def _request_id(self, turn: PlannedTurn) -> str:
        """Return the id of a turn's request: the same in every retry, another in every run."""
        return f"{self._run_id}-{turn.index}"

    def _remember(self, turn: PlannedTurn, reply: Reply) -> None:
        """Keep an answer while a later turn of its session may repeat it."""
        last = self._last.get(turn.session)
        if last is None:
            return
        if turn.turn >= last:
            self._answers.pop(turn.session, None)
        elif reply.fold.done and reply.fold.text:
            self._answers.setdefault(turn.session, {})[turn.answer_key] = reply.fold.text
