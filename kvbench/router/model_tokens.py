"""A model's tokens: its tokenizer, what has been made with it, and how far it is to be relied on.

Rules:

- A conversation has a text, or it is not known: it must be of messages and tools that a server is
  known to take, and come out alike whatever is not known of the server. What laying it out may cost
  is bounded.
- Prompts are of several forms (`FORMS`), each with a trust of its own: a pod's template may lay out
  tools otherwise than ours, and all else alike. Where the plain form is wrong, everything is.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from kvbench.errors import InputError
from kvbench.kvcache.chains import ChainStore
from kvbench.router.conversations import Chat, Messages
from kvbench.router.inputs import Responses
from kvbench.text.agreement import PROBE_CHAT, chat_difference
from kvbench.text.conversation import handed_over
from kvbench.text.known_words import KnownWords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.router.conversations import Conversation
    from kvbench.router.talks import Talk
    from kvbench.text.conversation import Spoken
    from kvbench.text.prefix_store import PrefixStore
    from kvbench.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FORMS: Final = {
    "": "everything",
    "parts": "chats with contents of several parts",
    "tools": "chats with tools, thoughts or template arguments",
    "none": "chats with tools of which none may be called",
    "messages": "Anthropic's messages",
    "responses": "responses",
}
"""Forms of prompts: each is trusted apart, and none if the first is not."""

_DEFAULTS: Final[tuple[dict[str, object], ...]] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"thinking": False},
    {"thinking": True},
)
_APART: Final[dict[type[Talk], str]] = {Messages: "messages", Responses: "responses"}
_MOST_MESSAGES = 2000  # laying them out takes five milliseconds
_MOST_OF_TOOLS = 2**19  # bytes; also of all that they were called with
_MOST_MISCOUNTED = 2
_MISCOUNTED_SHARE = 0.01


@dataclass(slots=True)
class Trust:
    """Whether the tokens of prompts of one form are to be relied on.

    Attributes:
        trouble: Why not, None if they are.
        checked: Requests whose tokens the pod has counted too.
        miscounted: Of these, those where it counted others.
    """

    trouble: str | None = None
    checked: int = 0
    miscounted: int = 0

    @property
    def worn(self) -> bool:
        """Whether too many were miscounted."""
        many = self.miscounted > _MOST_MISCOUNTED
        return many and self.miscounted > _MISCOUNTED_SHARE * self.checked


@dataclass(slots=True)
class ModelTokens:
    """A model's tokenizer, and what has been tokenised and hashed with it.

    Attributes:
        name: The model's name.
        tokenizer: Its tokenizer.
        lora: The adapter's name, None for a base model.
        trust: What is thought of the prompts of each form.
        parts: Whether a template is handed contents as lists, by whether there are tools; where it
            is not known, both must come out alike.
        defaults: What a pod hands to its template where a client does not.
        by_template: Whether its chats are made by its template: of some models a server makes them
            otherwise, and yet asks the template when it only counts.
    """

    name: str
    tokenizer: Tokenizer
    store: PrefixStore
    lora: str | None = None
    trust: dict[str, Trust] = field(default_factory=dict)
    parts: dict[bool, bool] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    by_template: bool = True
    _chains: dict[int, ChainStore] = field(default_factory=dict)
    _around: tuple[list[int], list[int]] | None = None
    _words: KnownWords | None = None

    def chains(self, block_size: int) -> ChainStore:
        """Return the store for blocks of that size."""
        if block_size not in self._chains:
            self._chains[block_size] = ChainStore(block_size)
        return self._chains[block_size]

    @property
    def words(self) -> KnownWords:
        """The words that came before; asked for first, it takes a few milliseconds."""
        if self._words is None:
            self._words = KnownWords(self.tokenizer, seams=self.store.seams)
        return self._words

    def around_text(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that are put before and behind a text that is no chat.

        Raises:
            InputError: They depend on the text.
        """
        if self._around is None:
            bare = self.tokenizer.encode("a")
            full = self.tokenizer.encode("a", add_special_tokens=True)
            extra = len(full) - len(bare)
            found = [n for n in range(extra + 1) if full[n : n + len(bare)] == bare]
            if not found:
                raise InputError("special tokens depend on the text")
            self._around = (full[: found[0]], full[found[0] + len(bare) :])
        return self._around

    @property
    def trouble(self) -> str | None:
        """Why none of its tokens are to be relied on, None if some are."""
        return self.of("").trouble

    def of(self, form: str) -> Trust:
        """Return what is thought of prompts of a form."""
        return self.trust.setdefault(form, Trust())

    def count(self, ours: int, theirs: int, form: str = "") -> bool:
        """Compare our count of a prompt with the pod's; return whether they agree."""
        trust = self.of(form)
        trust.checked += 1
        if ours == theirs:
            return True
        trust.miscounted += 1
        if trust.worn and trust.trouble is None:
            self.distrust(
                f"the pod counted {theirs} prompt tokens where ours are {ours}: it has another "
                "tokenizer or chat template",
                form,
            )
        return False

    def difference(self, theirs: Sequence[int]) -> str | None:
        """Return how a pod's tokens of `PROBE_CHAT` differ from ours; None: they do not.

        It may have been told what to hand to its template (`--default-chat-template-kwargs`), most
        often whether the model is to think: that is tried.
        """
        try:
            template = self.tokenizer.template()
            for defaults in _DEFAULTS:
                text = template.render(PROBE_CHAT, arguments=defaults)
                if self.tokenizer.encode(text) == list(theirs):
                    self.defaults = defaults
                    return None
            return chat_difference(self.tokenizer, theirs)
        except InputError as error:
            return error.message

    def met(self, probe: bytes, theirs: Sequence[int]) -> None:
        """Learn from what a pod makes of a chat: how contents are handed over, or that it differs.

        Args:
            probe: The body of the chat.
            theirs: Its token ids there.
        """
        chat = msgspec.json.decode(probe, type=Chat).conversation(self.tokenizer)
        if chat is None:
            return
        tools, made = chat.tools, dict[bool, list[int]]()
        for parts in (False, True):
            with contextlib.suppress(InputError):
                made[parts] = self.tokenizer.encode("".join(render(self, chat, tools, parts)))
        fits = [parts for parts, ids in made.items() if ids == list(theirs)]
        if len(fits) == 1:
            self.parts[tools is not None] = fits[0]
        elif not fits:
            self.distrust("the pod makes other tokens of a probe", "tools" if tools else "parts")

    def distrust(self, why: str, form: str = "") -> None:
        """Rely on the tokens of prompts of a form no more; on none, if it is the plain one."""
        self.of(form).trouble = why
        which = f"{self.name} ({FORMS[form]})" if form else self.name
        logger.warning("%s is routed by estimate from now on: %s", which, why)


def _form(said: Conversation) -> str:
    """Return the form of a chat, one of `FORMS`."""
    if not said.plain:
        return "tools"
    return "" if all(some.whole for some in said.said) else "parts"


def _chat_text(model: ModelTokens, said: Conversation) -> list[str] | None:
    """Return a chat's text, in parts; None if it depends on what is not known here.

    A server hands a template that may loop over parts a list of them, even where the client sent a
    text. Unless a pod has shown whether it takes a template for such a one, both must come out
    alike. Tools of which none may be called are there, unless a pod has shown that it was told to
    leave them out: then a chat with them must be as one without.
    """
    found = None
    certain = said.certain or model.of("none").trouble is None
    for tools in [said.tools] if certain else [said.tools, None]:
        known = model.parts.get(tools is not None)
        reads = model.tokenizer.template(tools=tools is not None).reads_parts
        both = (False, True) if reads else (False,)
        for parts in both if known is None else (known,):
            text = render(model, said, tools, parts)
            if found is not None and "".join(found) != "".join(text):
                return None
            found = text
    return found


def render(
    model: ModelTokens,
    said: Conversation,
    tools: Sequence[Mapping[str, object]] | None,
    parts: bool,
) -> list[str]:
    """Return a chat's text, in parts, with these tools, contents handed over as lists or not.

    Raises:
        InputError: The template refuses it.
    """
    template = model.tokenizer.template(tools=tools is not None)
    return template.parts(
        handed_over(said.said, parts=parts, developers=template.knows_developers),
        add_generation_prompt=said.answered,
        tools=tools,
        arguments={**model.defaults, **said.arguments} if model.defaults else said.arguments,
    )


def laid_out(
    model: ModelTokens, body: Talk, before: Sequence[Spoken] = ()
) -> tuple[str, list[str]] | None:
    """Return the form of a conversation, and its text in parts; None: they are not known.

    Args:
        model: Whose template makes it.
        body: The request's body, or what of it is not known.
        before: What is known: it was said before the body's messages.
    """
    length = body.length + sum(len(some.messages) for some in before)
    too_long = length > _MOST_MESSAGES or len(memoryview(body.tools)) > _MOST_OF_TOOLS
    if too_long or not model.by_template:
        return None
    said = body.conversation(model.tokenizer, before)
    if said is None or not said.sound:
        return None
    calls = sum(some.calls for some in said.said)
    called = sum(some.called for some in said.said)
    if len(said.tools or ()) + calls > _MOST_MESSAGES or called > _MOST_OF_TOOLS:
        return None
    as_chat = _form(said)
    form = as_chat if isinstance(body, Chat) else _APART[type(body)]
    if any(model.of(one).trouble is not None for one in (as_chat, form)):
        return None
    text = _chat_text(model, said)
    if not said.certain and model.of("none").trouble is None:
        form = "none"
    return None if text is None else (form, text)
