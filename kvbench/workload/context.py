"""Context strategies: what a client sends when the conversation no longer fits the window.

A conversation is a list of messages: the shared prefix (a system message, if there is one), then
questions and answers, the last one being the question to be asked. It fits if its content tokens
and the answer's are within the window; what the chat template adds is not counted.

What each strategy does to the prefix cache follows from where its cut lies. `drop_oldest` moves
everything behind the shared prefix with every turn, so nothing behind it is ever hit again;
`gist` keeps the beginning, which stays cached, and forgets what came after; `gist_recent` keeps
the beginning cached and computes the recent part anew; `summary` breaks the prefix once, and then
grows again (`kvbench.workload.sessions` asks for the summary).

An answer is kept whole or left out, never cut, since only the model knows its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvbench.workload.plan import Message, Segment
from kvbench.workload.strategies import Append, Context, DropOldest, Gist, GistRecent, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ANSWERS = ("answer/", "reasoning/")

Messages: TypeAlias = tuple[Message, ...]


def tokens_of(messages: Iterable[Message]) -> int:
    """Return the content tokens of some messages."""
    return sum(message.tokens for message in messages)


def outgrown(context: Context, messages: Messages, answer: int) -> bool:
    """Whether a conversation and the answer to come exceed the window."""
    return not isinstance(context, Append) and tokens_of(messages) + answer > context.window


def fit(context: Context, messages: Messages, answer: int) -> Messages:
    """Return what is sent of a conversation that ends with a question.

    Where even that does not fit (a question longer than the window), it is sent all the same: the
    server decides.
    """
    if not outgrown(context, messages, answer):
        return messages
    *said, question = messages
    if isinstance(context, DropOldest):
        kept = _without_oldest(said, context.window - answer - question.tokens)
    elif isinstance(context, Gist):
        kept = beginning(said, context.keep)
    elif isinstance(context, GistRecent):
        first = beginning(said, context.keep)
        kept = [*first, *recent(said[len(first) :], context.recent)]
    else:  # a summary that was made has left nothing to drop
        kept = said
    return merged([*kept, question])


def _without_oldest(said: Sequence[Message], room: int) -> list[Message]:
    """Drop messages after the system message until the rest fits and begins with a question."""
    system = list(said[:1]) if said and said[0].role == "system" else []
    rest = list(said[len(system) :])
    room -= tokens_of(system)
    while rest and (tokens_of(rest) > room or rest[0].role == "assistant"):
        del rest[0]
    return system + rest


def beginning(said: Iterable[Message], keep: int) -> list[Message]:
    """Return the first `keep` tokens; the last message is cut, or goes if an answer is in it."""
    kept = []
    for message in said:
        if message.tokens <= keep:
            kept.append(message)
            keep -= message.tokens
            continue
        if keep and not any(segment.key.startswith(_ANSWERS) for segment in message.segments):
            kept.append(Message(message.role, cut(message.segments, keep)))
        break
    return kept


def recent(said: Sequence[Message], most: int) -> list[Message]:
    """Return the last whole messages that have together at most `most` tokens."""
    kept: list[Message] = []
    for message in reversed(said):
        most -= message.tokens
        if most < 0:
            break
        kept.insert(0, message)
    return kept


def cut(segments: Iterable[Segment], tokens: int) -> tuple[Segment, ...]:
    """Return the first `tokens` tokens of some segments."""
    kept = []
    for segment in segments:
        if tokens <= 0:
            break
        kept.append(segment if segment.tokens <= tokens else Segment(segment.key, tokens))
        tokens -= segment.tokens
    return tuple(kept)


def merged(messages: Iterable[Message]) -> Messages:
    """Join messages of the same role that have come to stand side by side: templates want turns."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            joined[-1] = Message(message.role, joined[-1].segments + message.segments)
        else:
            joined.append(message)
    return tuple(joined)


def condensed(context: Summary, said: Sequence[Message], summary: Segment) -> Messages:
    """Return the conversation after its summary was made: prefix, summary, recent messages."""
    system = [message for message in said[:1] if message.role == "system"]
    rest = recent(said[len(system) :], context.recent)
    return merged([*system, Message("user", (summary,)), *rest])
