"""What is played: requests in order, whatever they were read from.

A `Script` is made from a plan (a workload or a trace) or from a request log. Its prompts give what
a simulation asks of them: a chain of blocks for the engine, and keys for the router. A plan's
prompts are paths of spans (`kvbench.oracle.paths`), a log's are token ids; nothing else differs.

What becomes of answers: a log's answers are its own tokens. Where a plan repeats the model's real
answers (history "answers"), a later prompt shares the blocks that the answer has filled; in every
other case answers fill blocks that no prompt will ever ask for, as a model's do.

The ceiling of a log is that of a plan (`kvbench.oracle.ceiling`): prompts and answers so far, taken
in order, on one pod that never forgets. A reset of the cache resets it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kvbench.kvcache.blocks import BlockChain, block_hashes
from kvbench.oracle.ceiling import ceiling
from kvbench.oracle.paths import Paths, SpanChain, hash_runs
from kvbench.workload.plan import Segment
from kvbench.workload.requestlog import MOST_TOKEN_ID

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvbench.kvcache.blocks import Chain
    from kvbench.oracle.paths import Key
    from kvbench.workload.plan import Plan, PlannedTurn
    from kvbench.workload.render import Renderer
    from kvbench.workload.requestlog import LoggedRequest, RequestLog

KEY_TOKENS = 64
"""Tokens that a key of the router stands for: 64 token ids, or 256 bytes of text."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt as seen by others.

    Attributes:
        chain: For the engine: its blocks. It grows by the answer's.
        keys: For the router: a number for each `KEY_TOKENS` tokens; equal numbers, equal
            beginnings.
    """

    chain: Chain
    keys: Sequence[int]


class Prompt(Protocol):
    """The tokens of a request."""

    def lay_out(self, block_size: int, owner: str, *, keyed: bool) -> Layout:
        """Return it as the engine and the router see it; without keys unless `keyed`."""
        ...

    def next_token(self, generated: int) -> int:
        """Return the answer's token number `generated`, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A request to be played.

    Attributes:
        index: What its row is called.
        session: Conversation.
        turn: Which turn of it, from 1.
        group: Prefix group.
        at: Seconds after the start at which it is sent; None: `think` after its predecessors.
        think: Seconds between the end of the last of its predecessors and itself.
        after: Positions of its predecessors, where `at` is None; all smaller than its own.
        prompt: Its tokens.
        prompt_tokens: How many.
        max_tokens: Tokens of the answer.
        ceiling_tokens: What an endless cache would have had of the prompt.
        reset_before: Whether all prefix caches are reset just before it arrives.
    """

    index: int
    session: str
    turn: int
    group: str
    at: float | None
    think: float
    prompt: Prompt
    prompt_tokens: int
    max_tokens: int
    ceiling_tokens: int
    after: tuple[int, ...] = ()
    reset_before: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """Requests in order.

    Attributes:
        name: Of what they were read from.
        requests: All of them.
        timed: Whether they have times; if not they can be sent one after the other, or all at once.
        where: Says where the request at a position stands: "trace.jsonl:14".
        notes: What people should know of how it came about.
    """

    name: str
    requests: tuple[Request, ...]
    timed: bool
    where: Callable[[int], str]
    notes: tuple[str, ...] = ()


def from_plan(
    plan: Plan,
    renderer: Renderer | None,
    block_size: int,
    *,
    where: Callable[[int], str],
    prefill_only: bool = False,
) -> Script:
    """Return the script of a plan.

    Args:
        plan: The plan.
        renderer: Knows the chat template's tokens; None leaves them out.
        block_size: Tokens per block, for the ceiling.
        where: Says where the turn at a position stands.
        prefill_only: Whether every answer is cut to one token, which fills no block.
    """
    if prefill_only:
        plan = replace(plan, turns=tuple(replace(turn, max_tokens=1) for turn in plan.turns))
    top = ceiling(plan, renderer, block_size)
    paths = Paths()
    requests = (
        Request(
            index=turn.index,
            session=turn.session,
            turn=turn.turn,
            group=turn.group,
            at=turn.at,
            think=turn.think,
            prompt=_PlannedPrompt(turn, tokens, plan, renderer, paths),
            prompt_tokens=tokens,
            max_tokens=turn.max_tokens,
            ceiling_tokens=cached,
            after=after,
        )
        for turn, tokens, cached, after in zip(
            plan.turns, top.prompt_tokens, top.cached_tokens, _predecessors(plan), strict=True
        )
    )
    return Script(plan.name, tuple(requests), timed=True, where=where, notes=plan.notes)


def from_log(
    log: RequestLog, block_size: int, *, speed: float = 1.0, prefill_only: bool = False
) -> Script:
    """Return the script of a request log.

    Args:
        log: The log.
        block_size: Tokens per block, for the ceiling.
        speed: How many times faster it is played.
        prefill_only: Whether every answer is cut to one token, which fills no block.
    """
    lines = [request.line for request in log.requests]
    turns: dict[str, int] = {}
    unknown = 0
    requests = []
    tops = _log_ceiling(log.requests, block_size, prefill_only=prefill_only)
    for logged, top in zip(log.requests, tops, strict=True):
        turns[logged.session] = turns.get(logged.session, 0) + 1
        requests.append(
            Request(
                index=logged.index,
                session=logged.session,
                turn=turns[logged.session],
                group=logged.group,
                at=None if logged.at is None else logged.at / speed,
                think=0.0,
                prompt=_LoggedPrompt(logged.prompt, logged.output, unknown),
                prompt_tokens=len(logged.prompt),
                max_tokens=1 if prefill_only else logged.max_tokens,
                ceiling_tokens=top,
                reset_before=logged.reset_before,
            )
        )
        if logged.output is None:
            unknown += logged.max_tokens
    return Script(log.name, tuple(requests), log.timed, lambda i: f"{log.path}:{lines[i]}")


def _predecessors(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Yield, for each turn, the positions of the turns that must have ended before it."""
    positions: dict[int, int] = {}
    last: dict[str, int] = {}
    for position, turn in enumerate(plan.turns):
        before = {positions[index] for index in turn.after}
        if turn.at is None and turn.session in last:
            before.add(last[turn.session])
        yield tuple(sorted(before))
        positions[turn.index] = last[turn.session] = position


class _PlannedPrompt:
    """A planned turn as a path of spans."""

    __slots__ = ("_paths", "_plan", "_prompt_tokens", "_renderer", "_turn")

    def __init__(
        self,
        turn: PlannedTurn,
        prompt_tokens: int,
        plan: Plan,
        renderer: Renderer | None,
        paths: Paths,
    ) -> None:
        self._turn = turn
        self._prompt_tokens = prompt_tokens
        self._plan = plan
        self._renderer = renderer
        self._paths = paths

    def lay_out(self, block_size: int, owner: str, *, keyed: bool) -> Layout:
        """Walk the path once for both."""
        turn = self._turn
        answered = self._plan.history == "answers"
        path = [*path_of(turn, self._renderer), *(_answer(turn) if answered else ())]
        runs = self._paths.walk(path)
        prompt = self._prompt_tokens
        if not answered:
            runs.append(self._paths.unique(prompt, turn.max_tokens))
        keys = hash_runs(runs, KEY_TOKENS)[: prompt // KEY_TOKENS] if keyed else ()
        return Layout(SpanChain(runs, prompt, block_size, owner), keys)

    def next_token(self, generated: int) -> int:
        """Return any token: what it is is not read."""
        return generated


class _LoggedPrompt:
    """A logged request: token ids. Where its answer is not known, tokens that nobody else has."""

    __slots__ = ("_output", "_prompt", "_unknown")

    def __init__(self, prompt: array[int], output: array[int] | None, unknown: int) -> None:
        self._prompt = prompt
        self._output = output
        self._unknown = unknown

    def lay_out(self, block_size: int, owner: str, *, keyed: bool) -> Layout:
        """Hash the tokens."""
        return Layout(
            BlockChain(self._prompt, block_size, owner=owner),
            block_hashes(self._prompt, KEY_TOKENS) if keyed else (),
        )

    def next_token(self, generated: int) -> int:
        """Return a token of the answer, or one that nobody else has."""
        if self._output is not None:
            return self._output[generated]
        return MOST_TOKEN_ID + 1 + (self._unknown + generated) % (MOST_TOKEN_ID + 1)


def path_of(turn: PlannedTurn, renderer: Renderer | None) -> Iterator[tuple[Key, int]]:
    """Yield a turn's prompt as (key, tokens); without a renderer the template is left out."""
    if renderer is None:
        for message in turn.messages:
            for segment in message.segments:
                yield segment.key, segment.tokens
    else:
        for piece in renderer.pieces(turn):
            yield (piece.key, piece.tokens) if isinstance(piece, Segment) else (piece, 1)


def _answer(turn: PlannedTurn) -> Iterator[tuple[Key, int]]:
    """Yield a turn's answer, its reasoning first, as later prompts repeat it."""
    reasoning = min(turn.reasoning_tokens, turn.max_tokens)
    if reasoning:
        yield turn.reasoning_key, reasoning
    if turn.max_tokens > reasoning:
        yield turn.answer_key, turn.max_tokens - reasoning


def _log_ceiling(
    requests: Iterable[LoggedRequest], block_size: int, *, prefill_only: bool
) -> Iterator[int]:
    """Yield what an endless cache would have had of each prompt, in tokens."""
    held: set[int] = set()
    for request in requests:
        if request.reset_before:
            held.clear()
        answer = None if prefill_only else request.output
        tokens = request.prompt if answer is None else request.prompt + answer[:-1]
        hashes = block_hashes(tokens, block_size)
        found, most = 0, (len(request.prompt) - 1) // block_size
        while found < most and hashes[found] in held:
            found += 1
        held.update(hashes)
        yield found * block_size
