"""From a planned turn to what is sent: messages, token ids, the body of the request.

For a chat the prompt is the template's text around the messages' content. The renderer learns a
template by rendering it once per sequence of roles, around words that it knows, and reading off
which tokens stand between them: the *frame*. From then on the tokens of a prompt are put together
from frame and segments, without tokenising anything, and are exactly what a server with the same
tokenizer computes. That is checked on whole prompts when a renderer is made, and a tokenizer or
template for which it does not hold is refused.

Bodies are joined from pieces, so a long prompt whose segments were seen before costs a copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.text.compose import Composer, SegmentCache
from kvbench.text.prefix_store import PrefixStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvbench.text.tokenizer import Tokenizer
    from kvbench.workload.plan import Message, Plan, PlannedTurn, Role, Segment

_NO_ANSWERS: dict[str, str] = {}
_PROBE_TOKENS = 8  # of the words put into a template to find them again
_CHECKED_TURNS = 3


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where the content of a message goes.

    Attributes:
        before: The template's tokens between the content before and this one.
        message: Index of the message.
        opening: Which of its forms the first word takes there: an index of `opening_ids`.
    """

    before: tuple[int, ...]
    message: int
    opening: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template puts around the messages of one sequence of roles."""

    slots: tuple[_Slot, ...]
    after: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The latest rendering of a template around probe words, and where these begin in it."""

    ids: Sequence[int]
    starts: list[int]


class Renderer:
    """Renders the turns of a plan with a tokenizer. Not for use by several threads at once.

    Args:
        plan: The plan; its seed decides the words.
        tokenizer: The tokenizer of the model that will be asked.

    Raises:
        InputError: The tokenizer has too few plain words; or the plan is a chat and the tokenizer
            has no template, or one that does not keep the messages' text as it is.
    """

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self.plan = plan
        self.tokenizer = tokenizer
        self.composer = Composer(tokenizer, plan.seed)
        self._frame = lru_cache(maxsize=4096)(self._make_frame)
        self._id_lists: SegmentCache[bytes] = SegmentCache(2_000_000)
        self._texts = PrefixStore(tokenizer)
        self._last = _Found((), [])
        if plan.api == "chat":
            self._check()

    def messages(
        self, turn: PlannedTurn, answers: Mapping[str, str] = _NO_ANSWERS
    ) -> list[dict[str, str]]:
        """Return the messages with their text.

        Args:
            turn: The turn.
            answers: Real answers so far, by answer key. Where the plan's history is "answers",
                they stand for the planned ones; an answer that is missing stays as planned.
        """
        return [
            {"role": message.role, "content": self._content(message, answers)}
            for message in turn.messages
        ]

    def prompt_text(self, turn: PlannedTurn, answers: Mapping[str, str]) -> str:
        """Return what the messages say, one after the other, without their template."""
        return "\n".join(self._content(message, answers) for message in turn.messages)

    def prompt_ids(self, turn: PlannedTurn) -> Sequence[int]:
        """Return the tokens of the prompt as planned, exactly."""
        if self.plan.api == "completions":
            return [i for message in turn.messages for i in self._spaced_ids(message)]
        frame = self._frame(tuple(message.role for message in turn.messages))
        ids: list[int] = []
        for slot in frame.slots:
            message = turn.messages[slot.message]
            ids += slot.before
            content = self._spaced_ids(message)
            content[0] = self.composer.opening_ids(message.segments[0].key)[slot.opening]
            ids += content
        ids += frame.after
        return ids

    def prompt_tokens(self, turn: PlannedTurn) -> int:
        """Return the number of tokens of the prompt, without making it."""
        if self.plan.api == "completions":
            return turn.content_tokens
        return turn.content_tokens + self._frame(tuple(m.role for m in turn.messages)).tokens

    def pieces(self, turn: PlannedTurn) -> Iterator[Segment | int]:
        """Yield the prompt as segments and, between them, single token ids of the template."""
        if self.plan.api == "completions":
            for message in turn.messages:
                yield from message.segments
            return
        frame = self._frame(tuple(message.role for message in turn.messages))
        for slot in frame.slots:
            yield from slot.before
            yield from turn.messages[slot.message].segments
        yield from frame.after

    def body(
        self,
        turn: PlannedTurn,
        model: str,
        *,
        answers: Mapping[str, str] = _NO_ANSWERS,
        cache_salt: str | None = None,
    ) -> bytes:
        """Return the JSON body of the request, streamed, with usage, of exactly `max_tokens`.

        Args:
            turn: The turn.
            model: Name of the model.
            answers: As for `messages`.
            cache_salt: vLLM's `cache_salt`: requests with different salts share no cache.
        """
        prompt = self._prompt_json(turn, answers)
        salt = f',"cache_salt":{json.dumps(cache_salt)}' if cache_salt is not None else ""
        options = (
            f',"max_tokens":{turn.max_tokens},"ignore_eos":true,"temperature":0{salt}'
            ',"stream":true,"stream_options":{"include_usage":true}}'
        )
        return b"".join((b'{"model":', json.dumps(model).encode(), b",", prompt, options.encode()))

    def _prompt_json(self, turn: PlannedTurn, answers: Mapping[str, str]) -> bytes:
        """Return `"messages":[…]` or `"prompt":[…]`."""
        if self.plan.api == "completions":
            lists = (
                self._id_list(segment, answers)
                for message in turn.messages
                for segment in message.segments
            )
            return b'"prompt":[' + b",".join(filter(None, lists)) + b"]"
        messages = (
            f'{{"role":"{message.role}","content":{self._content_json(message, answers)}}}'
            for message in turn.messages
        )
        return f'"messages":[{",".join(messages)}]'.encode()

    def _id_list(self, segment: Segment, answers: Mapping[str, str]) -> bytes:
        """Return the ids of a segment, or of the real answer in its place: "17,4,99"."""
        if (answer := self._real_answer(segment, answers)) is not None:
            return ",".join(map(str, self.tokenizer.encode(answer))).encode()
        return self._id_lists.get(segment.key, segment.tokens, self._make_id_list)

    def _make_id_list(self, key: str, tokens: int) -> bytes:
        """Return the ids of a segment."""
        return ",".join(map(str, self.composer.ids(key, tokens))).encode()

    def _content(self, message: Message, answers: Mapping[str, str]) -> str:
        """Return the text of a message: real answers where there are some."""
        if not self._repeats(message, answers):
            return self.composer.join((s.key, s.tokens) for s in message.segments)
        content = ""
        for segment in message.segments:
            answer = self._real_answer(segment, answers)
            text = self.composer.text(segment.key, segment.tokens) if answer is None else answer
            content += " " if content and text and not text[0].isspace() else ""
            content += text
        return content

    def _content_json(self, message: Message, answers: Mapping[str, str]) -> str:
        """Return the text of a message as a JSON string."""
        content = self._content(message, answers)
        if self._repeats(message, answers):
            return json.dumps(content)
        return f'"{content}"'  # plain words are JSON as they are

    def _repeats(self, message: Message, answers: Mapping[str, str]) -> bool:
        """Whether a real answer stands in a message."""
        if not answers or self.plan.history != "answers":
            return False
        return any(segment.key in answers for segment in message.segments)

    def _real_answer(self, segment: Segment, answers: Mapping[str, str]) -> str | None:
        """Return the answer that stands for a segment, if the plan wants real answers."""
        return answers.get(segment.key) if self.plan.history == "answers" else None

    def _spaced_ids(self, message: Message) -> list[int]:
        """Return the tokens of a message where something stands before them."""
        return self.composer.join_ids((s.key, s.tokens) for s in message.segments)

    def _make_frame(self, roles: tuple[Role, ...]) -> _Frame:
        """Render the template around known words and read off what stands between them."""
        keys = [f"probe/{i}" for i in range(len(roles))]
        messages = [
            {"role": role, "content": self.composer.text(key, _PROBE_TOKENS)}
            for role, key in zip(roles, keys, strict=True)
        ]
        ids = self._texts.encode(self.tokenizer.render_chat(messages)).ids.tolist()
        starts = self._starts(ids, keys)
        slots, end = [], 0
        for start, i in sorted(zip(starts, range(len(keys)), strict=True)):  # it may move messages
            opening = self.composer.opening_ids(keys[i]).index(ids[start])
            slots.append(_Slot(tuple(ids[end:start]), i, opening))
            end = start + _PROBE_TOKENS
        return _Frame(tuple(slots), tuple(ids[end:]), len(ids) - _PROBE_TOKENS * len(roles))

    def _starts(self, ids: Sequence[int], keys: Sequence[str]) -> list[int]:
        """Return where the probe words of each key begin.

        Most renderings go on where the one before them ended: what they have in common is not
        searched anew, or a conversation of n turns would cost n² searches.
        """
        common = _in_common(ids, self._last.ids)
        starts: list[int] = []
        after = 0
        for start, _ in zip(self._last.starts, keys, strict=False):
            if start < after or start + _PROBE_TOKENS > common:
                break
            starts.append(start)
            after = start + _PROBE_TOKENS
        for key in keys[len(starts) :]:
            starts.append(self._find(ids, key, after))
            after = starts[-1] + _PROBE_TOKENS
        self._last = _Found(ids, starts)
        return starts

    def _find(self, ids: Sequence[int], key: str, after: int) -> int:
        """Return where the probe words of `key` begin, the first of them in any of its forms.

        Looks behind `after` first, which is where they are unless messages were moved.
        """
        rest = list(self.composer.ids(key, _PROBE_TOKENS)[1:])
        firsts = self.composer.opening_ids(key)
        places = len(ids) - _PROBE_TOKENS + 1
        for start in chain(range(after, places), range(min(after, places))):
            if ids[start] in firsts and list(ids[start + 1 : start + _PROBE_TOKENS]) == rest:
                return start
        raise InputError(
            "the chat template does not keep the text of every message as it is",
            where=str(self.tokenizer.path),
            hint="prompts of known length need a template that does; try `api: completions`",
        )

    def _check(self) -> None:
        """Tokenise a few prompts in full and compare."""
        turns = self.plan.turns
        for i in sorted({len(turns) * k // _CHECKED_TURNS for k in range(_CHECKED_TURNS)}):
            if i < len(turns):
                whole = self.tokenizer.encode_chat(self.messages(turns[i]))
                if whole != self.prompt_ids(turns[i]):
                    raise InputError(
                        f"turn {i}: its text does not tokenise to the tokens that it is made of",
                        where=str(self.tokenizer.path),
                        hint="words melt into the template there; try `api: completions`",
                    )


def _in_common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return how many ids two sequences have in common at their beginning."""
    low, high = 0, min(len(some), len(others))
    while low < high:  # compared in slices, which the interpreter does quickly
        middle = (low + high + 1) // 2
        if some[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
