"""The chat template: a list of messages in, the prompt's text out.

The template is a program that came with a model, so it runs in Jinja's immutable sandbox: it can
neither reach Python's internals nor change what it was given. Whitespace control, the functions
`raise_exception` and `strftime_now`, the filter `tojson`, the loop controls and the tag
`generation` behave as model repositories expect of an inference server, so that the text equals
what the server renders from the same messages, tools and arguments.
"""

from __future__ import annotations

import contextlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import msgspec
from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.compiler import CodeGenerator, optimizeconst
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Add, Call, Const, For, Getattr, Getitem, Macro, Name, Output
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing

from kvbench import clock
from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from jinja2.compiler import Frame
    from jinja2.nodes import Node
    from jinja2.parser import Parser


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}`: marks text for training, renders as its body."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - the base class says what it is

    def parse(self, parser: Parser) -> list[Node]:
        """Return the body in place of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Kept(dict[str, object]):
    """An object that many prompts have in them: what it is as JSON is made once."""

    __slots__ = ("_told",)

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self._told: dict[object, str] = {}

    def json(self, how: object, make: Callable[[], str]) -> str:
        """Return it as JSON, written in that way: as `make` did the first time."""
        if how not in self._told:
            self._told[how] = make()
        return self._told[how]


class _Texts:
    """Texts as JSON; those that came last are known, for an agent says the same again each turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._told: dict[str, str] = {}

    def json(self, text: str) -> str:
        """Return a text as JSON, as Python writes it if nothing is escaped for ASCII.

        Raises:
            UnicodeEncodeError: It has halves of characters.
        """
        found = self._told.get(text)
        if found is None:
            found = msgspec.json.encode(text).decode()
            self._size += len(found)
            if self._size > self._most:
                self._told.clear()
                self._size = len(found)
            self._told[text] = found
        return found


class _Generator(CodeGenerator):
    """Writes a template's code: of a dict `m.role` and `m["role"]` are found without a call.

    Of other things, and of a dict that has none, the sandbox says it, as it would of all. And texts
    that are added to be printed are printed one after the other: so a long content is not copied
    with each that is added to it, and is the object that the template was handed.
    """

    def visit_Output(self, node: Output, frame: Frame) -> None:  # noqa: N802 - of the base class
        """Write what is printed."""
        chains = [_terms(child) for child in node.nodes]
        if frame.buffer is not None or frame.require_output_check or not any(chains):
            super().visit_Output(node, frame)
            return
        for child, terms in zip(node.nodes, chains, strict=True):
            if not terms:
                one = Output([child], lineno=node.lineno)
                one.set_environment(self.environment)
                super().visit_Output(one, frame)
                continue
            self._print_each(terms, frame)

    def _print_each(self, terms: Sequence[Node], frame: Frame) -> None:
        """Write that terms are printed one after the other, or their sum, if one is no text."""
        said, unsure = list[str](), list[str]()
        for term in terms:
            if isinstance(term, Const):
                said.append(repr(term.value))
                continue
            said.append(self.temporary_identifier())
            unsure.append(f"type({said[-1]}) is str")
            self.writeline(f"{said[-1]} = ", term)
            self.visit(term, frame)
        self.writeline(f"if {' and '.join(unsure)}:")
        self.indent()
        for one in said:
            self.writeline(f"yield {one}")
        self.outdent()
        self.writeline("else:")
        self.indent()
        self.writeline(f"yield str({' + '.join(said)})")
        self.outdent()

    @optimizeconst
    def visit_Getattr(self, node: Getattr, frame: Frame) -> None:  # noqa: N802 - of the base class
        """Write an attribute."""
        name = self.temporary_identifier()
        if isinstance(node.node, Name) and node.node.name == "loop" and node.attr in _OF_LOOPS:
            found, is_easy = f"{name}.{node.attr}", "is LoopContext"
        elif node.attr not in _OF_DICTS:
            found, is_easy = f"{name}[{node.attr!r}]", f"is dict and {node.attr!r} in {name}"
        else:
            super().visit_Getattr(node, frame)
            return
        self.write(f"({found} if type({name} := ")
        self.visit(node.node, frame)
        self.write(f") {is_easy} else environment.getattr({name}, {node.attr!r}))")

    @optimizeconst
    def visit_Getitem(self, node: Getitem, frame: Frame) -> None:  # noqa: N802 - of the base class
        """Write what stands at a key."""
        key = node.arg.value if isinstance(node.arg, Const) else None
        if not isinstance(key, str):
            super().visit_Getitem(node, frame)
            return
        name = self.temporary_identifier()
        self.write(f"({name}[{key!r}] if type({name} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {key!r} in {name} else environment.getitem({name}, {key!r}))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which what templates ask for all the time is found at once.

    There, `m.role` is tried as an attribute first, and the exception that follows takes longer than
    everything else that a template does for a message; and of each attribute of a text or a loop it
    is found out anew that it is harmless, as all are but for those that begin with `_` and a text's
    `format`.
    """

    code_generator_class = _Generator

    def getattr(self, obj: object, attribute: str) -> object:
        """Return what `obj.attribute` is in a template."""
        kind: type[object] = type(obj)
        if kind is dict or kind is Kept:
            if attribute not in _OF_DICTS:
                found: dict[str, object] = obj  # type: ignore[assignment]  # seen above
                if attribute in found:
                    return found[attribute]
                return self.undefined(obj=obj, name=attribute)
        elif kind is Namespace and attribute[0] != "_":
            value: object = getattr(obj, attribute, missing)
            if value is not missing:
                return value
        elif attribute in _HARMLESS.get(kind, _NONE):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _terms(printed: Node) -> list[Node]:
    """Return what is added, if it begins with a text and is not that of constants; else nothing."""
    terms: list[Node] = []
    while isinstance(printed, Add):
        terms.append(printed.right)
        printed = printed.left
    terms.append(printed)
    constants = [term.value for term in terms if isinstance(term, Const)]
    if not isinstance(printed, Const) or len(constants) == len(terms):
        return []
    return terms[::-1] if all(isinstance(value, str) for value in constants) else []


_texts = _Texts(4 * 2**20)  # characters
_NONE: frozenset[str] = frozenset()
_OF_DICTS = frozenset(dir(dict))
_OF_LOOPS = frozenset(name for name in dir(LoopContext) if name[0] != "_")
_HARMLESS: dict[type[object], frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if name[0] != "_") - {"format", "format_map"}
    for kind in (str, LoopContext)
}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON for a model to read: nothing escaped for HTML, nor for ASCII unless asked."""

    def make() -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    if type(value) is Kept and separators is None:
        return value.json((ensure_ascii, indent, sort_keys), make)
    if type(value) is str and not ensure_ascii:
        with contextlib.suppress(UnicodeEncodeError):  # of halves of characters
            return _texts.json(value)
    return make()


def _raise_exception(message: str) -> NoReturn:
    """Let a template refuse its messages."""
    raise TemplateError(message)


def _names_content(expression: Node) -> bool:
    """Return whether an expression has to do with a content: `m.content`, `m["content"]`."""
    parts: list[Node] = [expression, *expression.find_all((Getattr, Const, Name))]
    named = (getattr(part, field, None) for part in parts for field in ("attr", "name", "value"))
    return any(isinstance(name, str) and "content" in name for name in named)


def _reads_parts(template: Node) -> bool:
    """Return whether a template loops over what may be a content, or what a macro is given as one.

    The macro may call it by another name.
    """
    loops = [loop.iter for loop in template.find_all(For)]
    if any(map(_names_content, loops)):
        return True
    names = {name.name for loop in loops for name in [loop] if isinstance(name, Name)}
    given = {
        (call.node.name, place)
        for call in template.find_all(Call)
        if isinstance(call.node, Name)
        for place, value in [*enumerate(call.args), *((one.key, one.value) for one in call.kwargs)]
        if _names_content(value)
    }
    return any(
        argument.name in names and given & {(macro.name, place), (macro.name, argument.name)}
        for macro in template.find_all(Macro)
        for place, argument in enumerate(macro.args)
    )


RESERVED = frozenset(
    {
        "messages", "conversation", "conversations", "tools", "documents", "chat_template",
        "add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation",
        "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
        "tokenizer_kwargs", "self", "tokenizer", "model_config",
    }
)  # fmt: skip
"""Arguments that mean something to whoever calls a template: a client cannot hand these to it."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: The template's text.
        where: The file that it came from, for errors.
        special_tokens: `bos_token`, `eos_token` and the like, as the template sees them.
        now: What `strftime_now` asks for the date.

    Attributes:
        reads_parts: Whether it may take a message's content for a list of parts: it loops over one.
            A server hands such a template the parts as they came, and any other their texts in one,
            line by line.
        knows_developers: Whether it names the role of a developer; else that is the system's.

    Raises:
        InputError: The template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        where: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = clock.utc,
    ) -> None:
        self._where = where
        self._special_tokens = dict(special_tokens)
        env = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        env.filters["tojson"] = _to_json
        env.globals["raise_exception"] = _raise_exception
        env.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = env.from_string(source)
            tree = env.parse(source)
        except TemplateSyntaxError as error:
            raise InputError(
                f"the chat template does not compile: {error.message}",
                where=f"{where}:{error.lineno}",
                hint="use the chat_template.jinja that belongs to the model",
            ) from error
        self._source = source
        self.knows_developers = "'developer'" in source or '"developer"' in source
        self.reads_parts = _reads_parts(tree)
        self._variables = find_undeclared_variables(tree)

    def asks_for(self, *names: str) -> bool:
        """Return whether it looks at one of these arguments."""
        return not self._variables.isdisjoint(names)

    @cached_property
    def system_first(self) -> bool:
        """Whether vLLM takes it to refuse what the system says in the middle of a conversation.

        It tries that without the functions and the tag that templates have of their own.
        """
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        roles = ("system", "user", "system", "user")
        said = [{"role": role, "content": "t"} for role in roles]
        try:
            env.from_string(self._source).render(messages=said, add_generation_prompt=False)
        except Exception:  # noqa: BLE001 - a template may fail in any way that a program can
            return True
        return False

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text of `messages`: see `parts`.

        Raises:
            InputError: As there.
        """
        return "".join(
            self.parts(
                messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                arguments=arguments,
            )
        )

    def parts(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> list[str]:
        """Return the text of `messages`, in the parts that the template makes it of.

        A content that it prints as it is is one of them, and the very object that it was handed.

        Args:
            messages: Each with `role` and `content`, and what else `kvbench.text.conversation` says
                of one.
            add_generation_prompt: Whether the text ends where an answer begins.
            tools: What the model may call; None is nothing.
            arguments: What a client hands to the template besides (`enable_thinking`, …). What the
                template does not ask for is left out, as a server leaves it out.

        Raises:
            InputError: The template refuses the messages (no system role, say) or fails, or an
                argument is one of `RESERVED`.
        """
        given = arguments or {}
        if not RESERVED.isdisjoint(given):
            raise InputError(
                f"expected arguments of the template's own, got {min(RESERVED & given.keys())!r}",
                where=self._where,
            )
        wanted = {name: value for name, value in given.items() if name in self._variables}
        try:
            context = self._template.new_context(
                {
                    **self._special_tokens,
                    **wanted,
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                    "tools": tools,
                    "documents": None,
                }
            )
            return list(self._template.root_render_func(context))
        except Exception as error:  # a template may fail in any way that a program can
            raise InputError(
                f"the chat template refuses these messages: {error}",
                where=self._where,
                hint="some templates know no system role, or want user and assistant to alternate",
            ) from error
