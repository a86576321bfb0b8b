"""A conversation as a chat template sees it: what vLLM makes of a request's messages and tools.

A template is not handed what a client sends. vLLM 0.32 validates it, fills in what was left out,
drops what it does not know, and brings it into an order of its own, all of which shows where a
template prints a tool or a call as JSON. Read from its `renderers/chat_utils.py`, `renderers/hf.py`
and `entrypoints/openai/chat_completion`, and held to them by `tests/vllm/test_chats.py`:

- a tool keeps its type and its function's name, description, parameters, and what is said of
  `strict` and `defer_loading`, in this order; a description or parameters left out are null;
- a call keeps all of it, `id` first, then its function (arguments before name), then its type; its
  arguments are the object that their JSON says, `{}` if it says none;
- a message keeps role, content, calls, its thoughts under two names, the call that it answers, and
  a name; an empty list of calls is none;
- a content is one text, of a list its texts that are not empty, line by line; or, for a template
  that loops over contents, always a list. What a tool answered is one text for either;
- of a system message the line that only Claude Code's billing wants is taken away.

What is refused there, or was not tried, is refused here: values of other types, fields of other
names, roles but four. `kvbench.router.tokens` takes that for "not known".
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvbench.text.chat_template import Kept
from kvbench.text.digest import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.text.prefix_store import Rendered

_NULL = msgspec.Raw(b"null")
_LONGEST_KEPT = 131_072  # bytes of JSON: in memory it is some five times as long
_SHORT = 1024  # characters of a call's arguments
_MOST_KNOWN = 4096
_BILLING = "x-anthropic-billing-header"


class Part(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A piece of a message's content."""

    text: str
    type: Literal["text"]
    cache_control: dict[str, object] | UnsetType = UNSET


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a model called; the arguments are JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A call in a message of the assistant."""

    id: str
    function: CalledFunction
    type: Literal["function"]
    index: int | UnsetType = UNSET

    def seen(self) -> dict[str, object]:
        """Return it as a template sees it.

        Raises:
            ValueError: Its arguments are such that a server fails, too.
            RecursionError: They are nested too deeply.
        """
        function = {"arguments": _arguments(self.function.arguments), "name": self.function.name}
        call: dict[str, object] = {"id": self.id, "function": function, "type": self.type}
        return call if self.index is UNSET else {**call, "index": self.index}


class PlainCall(ToolCall, gc=False):
    """A call that a server makes itself, of what it was sent: it comes to templates as it is."""

    def seen(self) -> dict[str, object]:
        """Return it as a template sees it: the name before the arguments.

        Raises:
            ValueError: Its arguments are such that a server fails, too.
            RecursionError: They are nested too deeply.
        """
        function = {"name": self.function.name, "arguments": _arguments(self.function.arguments)}
        return {"id": self.id, "function": function, "type": self.type}


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message in the form of OpenAI's chats."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | UnsetType = UNSET
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None  # which, as the next, no template is handed
    annotations: list[msgspec.Raw] | None = None
    audio: None = None
    function_call: None = None

    @property
    def plain(self) -> bool:
        """Whether it is a role and a content, and nothing more."""
        return (
            self.role not in {"tool", "developer"}
            and self.content is not None
            and self.tool_calls is None
            and self.reasoning is None
            and self.reasoning_content is None
        )

    @property
    def sound(self) -> bool:
        """Whether a server takes it, and hands on all of it that it may have."""
        if self.role != "assistant" and (
            self.content is None
            or self.tool_calls is not None
            or self.reasoning is not None
            or self.reasoning_content is not None
        ):
            return False
        return self.role == "tool" or self.tool_call_id is UNSET

    def seen(self, *, parts: bool) -> dict[str, object]:
        """Return it as a template sees it.

        Args:
            parts: Whether contents are handed over as lists.

        Raises:
            ValueError: The arguments of a call are such that a server fails, too.
            RecursionError: They are nested too deeply.
        """
        whole = not parts or self.role == "tool"
        message: dict[str, object] = {
            "role": self.role,
            "content": self.text(keep_empty=parts) if whole else self._parts(),
        }
        if self.role == "assistant":
            if self.tool_calls:
                message["tool_calls"] = [call.seen() for call in self.tool_calls]
            thoughts = self.reasoning_content if self.reasoning is None else self.reasoning
            if thoughts is not None:
                message["reasoning"] = message["reasoning_content"] = thoughts
        elif self.tool_call_id is not UNSET:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message

    def text(self, *, keep_empty: bool) -> str:
        """Return the content as one text."""
        content = self.content
        if isinstance(content, str) and (self.role != "system" or not content.startswith(_BILLING)):
            return content
        texts = (str(part["text"]) for part in self._parts())
        return "\n".join(text for text in texts if text or keep_empty)

    def _parts(self) -> list[dict[str, object]]:
        """Return the content as a list."""
        content = self.content
        given = [Part(content, "text")] if isinstance(content, str) else content or []
        found = []
        for part in given:
            text = part.text
            if self.role == "system" and text.startswith(_BILLING):
                text = text.partition("\n")[2]
                if not text:
                    continue
            said: dict[str, object] = {"type": "text", "text": text}
            if part.cache_control is not UNSET:
                said["cache_control"] = part.cache_control
            found.append(said)
        return found


class Spoken:
    """Messages that follow each other, of which many prompts may have all.

    As a template sees them they are made once, for no template can change what it is handed.

    Attributes:
        messages: The messages.
        sound: Whether a server takes all of them.
        plain: Whether each is a role and a content, and nothing more.
        whole: Whether each has one text for a content.
        developers: Whether a developer says something.
        calls: How many calls there are.
        called: Characters of their arguments.
        views: As a template sees them: see `seen`.
        rendered: The last text of a conversation that began with these, if nothing more was known.
    """

    __slots__ = (
        "called", "calls", "developers", "messages", "plain", "rendered", "sound", "views", "whole",
    )  # fmt: skip

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.sound = self.plain = self.whole = True
        self.developers = False
        self.calls = self.called = 0
        for message in messages:
            self.sound = self.sound and message.sound
            self.plain = self.plain and message.plain
            self.whole = self.whole and isinstance(message.content, str)
            self.developers = self.developers or message.role == "developer"
            for call in message.tool_calls or ():
                self.calls += 1
                self.called += len(call.function.arguments)
        self.rendered: Rendered | None = None
        self.views: dict[bool, list[dict[str, object]]] = {}

    @classmethod
    def joined(cls, several: Sequence[Spoken]) -> Spoken:
        """Return the messages of several, one after the other; they go on from the first."""
        first, *more = several
        if not more:
            return first
        whole = cls([])
        whole.messages = [message for some in several for message in some.messages]
        whole.sound = all(some.sound for some in several)
        whole.plain = all(some.plain for some in several)
        whole.whole = all(some.whole for some in several)
        whole.developers = any(some.developers for some in several)
        whole.calls = sum(some.calls for some in several)
        whole.called = sum(some.called for some in several)
        whole.rendered, first.rendered = first.rendered, None
        for parts in first.views:  # how they have been asked for
            with contextlib.suppress(ValueError, RecursionError):  # whoever asks hears of it
                whole.views[parts] = [one for some in several for one in some.seen(parts=parts)]
        return whole

    def seen(self, *, parts: bool) -> list[dict[str, object]]:
        """Return them as a template sees them: see `Message.seen`.

        Raises:
            ValueError: The arguments of a call are such that a server fails, too.
            RecursionError: They are nested too deeply.
        """
        found = self.views.get(parts)
        if found is None:
            found = self.views[parts] = [one.seen(parts=parts) for one in self.messages]
        return found


class Definition(msgspec.Struct, gc=False):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool; what else a client says of one is not handed to a template."""

    function: Definition
    type: Literal["function"] = "function"
    defer_loading: bool | None = None

    def seen(self) -> Kept:
        """Return it as a template sees it."""
        told, defers = self.function, self.defer_loading
        function: dict[str, object] = {
            "name": told.name,
            "description": told.description,
            "parameters": None if told.parameters is None else Kept(told.parameters),
        }
        if told.strict is not None:
            function["strict"] = told.strict
        inner = defers if told.defer_loading is None else told.defer_loading
        if inner is not None:
            function["defer_loading"] = inner
        tool: dict[str, object] = {"type": self.type, "function": Kept(function)}
        return Kept(tool if defers is None else {**tool, "defer_loading": defers})


read_tools: Callable[[msgspec.Raw], list[Tool]] = msgspec.json.Decoder(list[Tool]).decode
"""Reads tools in the form of OpenAI's chats."""


def without_bill(text: str | None) -> str:
    """Return a text of the system, "" if it is one that only Claude Code's billing wants."""
    return "" if text is None or text.startswith(_BILLING) else text


def tools_seen(tools: Sequence[Tool] | None) -> list[Kept] | None:
    """Return tools as a template sees them; None: there are none."""
    return None if tools is None else [tool.seen() for tool in tools]


def handed_over(
    said: Sequence[Spoken], *, parts: bool, developers: bool
) -> list[dict[str, object]]:
    """Return messages as a template sees them.

    Args:
        said: The messages.
        parts: Whether contents are handed over as lists.
        developers: Whether the template knows the role of a developer. If not, a developer is the
            system; and if then the system says something later, all of it goes first, in one.

    Raises:
        ValueError: The arguments of a call are such that a server fails, too.
        RecursionError: They are nested too deeply.
    """
    seen = list[dict[str, object]]()
    for some in said:
        seen += some.seen(parts=parts)
    if not any(some.developers for some in said):
        return seen
    if developers:
        return [{**one, "tools": None} if one["role"] == "developer" else one for one in seen]
    seen = [{**one, "role": "system"} if one["role"] == "developer" else one for one in seen]
    if all(one["role"] != "system" for one in seen[1:]):
        return seen
    texts = [
        message.text(keep_empty=parts)
        for some in said
        for message in some.messages
        if message.role in {"system", "developer"}
    ]
    first: dict[str, object] = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [first, *(one for one in seen if one["role"] != "system")]


class KnownTools:
    """Tools that came before: agents send the same with each request, and they are long.

    Args:
        read: Reads tools in the form of one API.
        most: Of how many requests tools are kept.
    """

    def __init__(self, read: Callable[[msgspec.Raw], list[Tool]], most: int = 64) -> None:
        self._read = read
        self._most = most
        self._kept: OrderedDict[int, list[Kept]] = OrderedDict()

    def seen(self, tools: msgspec.Raw) -> list[Kept] | None:
        """Return tools, as JSON, as a template sees them; None: there are none.

        Raises:
            ValueError: They are no tools.
        """
        if not tools or tools == _NULL:
            return None
        name = digest(tools)
        found = self._kept.get(name)
        if found is None:
            found = [tool.seen() for tool in self._read(tools)]
            if len(memoryview(tools)) <= _LONGEST_KEPT:
                self._kept[name] = found
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(name)
        return found


def _arguments(text: str) -> dict[str, object]:
    """Return the arguments of a call; none, if that is no object."""
    return _known_arguments(text) if len(text) <= _SHORT else _read_arguments(text)


def _read_arguments(text: str) -> dict[str, object]:
    """Return the arguments of a call; none, if that is no object."""
    try:
        found = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    return Kept(found) if isinstance(found, dict) else {}


_known_arguments = lru_cache(_MOST_KNOWN)(_read_arguments)
