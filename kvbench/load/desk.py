"""The desk: builds requests out of planned turns, and files what became of them as rows.

It keeps the answers that later turns repeat ("answers" history); an answer is dropped with the last
turn that repeats it. Whatever was filed lies in the row file when `file`
returns, and, for those who watch, in the outbox.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from kvbench.load.outcome import sent
from kvbench.load.reply import Reply
from kvbench.openai.stream import StreamFold
from kvbench.records.unsent import Expected, unsent

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

    def prompt_text(self, turn: PlannedTurn, answers: Mapping[str, str]) -> str:
        """Return what a request says, without its template."""
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
        window: Tokens of the server's longest request, None if unknown.
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
        window: int | None = None,
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
        self._window = window
        self._answers: dict[str, str] = {}  # by key
        self._uses: Counter[str] = Counter()  # turns to come that repeat an answer
        if plan.history == "answers":
            keys = {key for turn in plan.turns for key in (turn.answer_key, turn.reasoning_key)}
            for turn in plan.turns:
                self._uses.update(key for key in _keys(turn) if key in keys)

    def request(self, turn: PlannedTurn) -> bytes:
        """Return the bytes that ask for `turn`."""
        body = self._bodies.body(turn, self._model, answers=self._answers, cache_salt=self._salt)
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
            row = sent(
                row,
                reply,
                reply.fold,
                start=self._start,
                pod=self._pod,
                prompt=lambda: self._bodies.prompt_text(turn, self._answers),
                window=self._window,
            )
            self._remember(turn, reply)
        if self._uses:
            self._forget(turn)
        self._write(row)

    def _request_id(self, turn: PlannedTurn) -> str:
        """Return the id of a turn's request: the same in every retry, another in every run."""
        return f"{self._run_id}-{turn.index}"

    def _remember(self, turn: PlannedTurn, reply: Reply) -> None:
        """Keep an answer that later turns repeat."""
        if not reply.fold.done or not reply.fold.text:
            return
        texts = {turn.answer_key: reply.fold.text, turn.reasoning_key: reply.fold.reasoning}
        self._answers.update({key: text for key, text in texts.items() if key in self._uses})

    def _forget(self, turn: PlannedTurn) -> None:
        """Drop the answers that `turn` was the last one to repeat."""
        for key in _keys(turn):
            if key in self._uses:
                self._uses[key] -= 1
                if not self._uses[key]:
                    del self._uses[key]
                    self._answers.pop(key, None)


def _keys(turn: PlannedTurn) -> set[str]:
    """Return the keys of the segments that a prompt is made of."""
    return {segment.key for message in turn.messages for segment in message.segments}
