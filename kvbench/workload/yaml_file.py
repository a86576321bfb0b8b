"""A YAML file as plain values, together with the line on which each of them stands.

Only YAML's safe types are made: no Python objects. Refused, each with file and line: what is not
UTF-8 or not YAML, an empty file, several documents, a key that occurs twice, and files that are
large, deep, or become so through aliases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_BYTES = 1_000_000
MOST_VALUES = 20_000
_MOST_DEPTH = 50


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The content of a file.

    Attributes:
        path: Where it was read.
        content: Dicts, lists and scalars.
        lines: For each path of keys and indices, the line (from 1) of that key or item.
    """

    path: Path
    content: object
    lines: dict[tuple[str | int, ...], int]

    def where(self, path: Sequence[str | int]) -> str:
        """Return "file:line" of the value at `path`, or of the nearest value around it."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(tuple(path[:length]))) is not None:
                return f"{self.path}:{line}"
        return str(self.path)


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML file.

    Raises:
        InputError: The file is missing or refused; see the module.
    """
    text = _read_text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise InputError("expected keys and values, got an empty file", where=str(path))
        reader = _Reader(path, loader)
        return YamlFile(path, reader.value(node, ()), reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = error.problem or error.context
        raise InputError(
            f"not YAML: {problem}", where=where, hint="check indentation, colons and quotes there"
        ) from error
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {error}", where=str(path)) from error


def _read_text(path: Path) -> str:
    """Return the text of a file that is neither missing nor large nor in another encoding."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error
    if len(raw) > MOST_BYTES:
        raise InputError(f"expected at most {MOST_BYTES:,} bytes, got more", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"expected UTF-8, got byte 0x{raw[error.start]:02x}",
            where=f"{path}:{line}",
            hint="save the file as UTF-8",
        ) from error


class _Loader(yaml.SafeLoader):
    """The safe loader, which stops at too many levels before they cost time and stack."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node one level further down."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack its type
            problem = f"expected at most {_MOST_DEPTH} levels, got more"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Reader:
    """Turns YAML nodes into values and notes their lines."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self._path = path
        self._loader = loader
        self._values = 0
        self.lines: dict[tuple[str | int, ...], int] = {}

    def value(self, node: yaml.Node, path: tuple[str | int, ...]) -> object:
        """Return the value of a node and of all below it."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._values += 1
        if self._values > MOST_VALUES:
            raise self._error(node, f"expected at most {MOST_VALUES:,} values, got more")
        if len(path) > _MOST_DEPTH:
            raise self._error(node, f"expected at most {_MOST_DEPTH} levels, got more")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, object]:
        """Return the value of a mapping; each key once."""
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "expected a word as key, got a list or a mapping")
            if key in mapping:
                raise self._error(
                    key_node, f"{'.'.join(map(str, (*path, key)))}: expected once, got twice"
                )
            self.lines[*path, key] = key_node.start_mark.line + 1
            mapping[key] = self.value(value_node, (*path, key))
        return mapping

    def _scalar(self, node: yaml.Node) -> object:
        """Return text, number, truth value, date or nothing."""
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, OverflowError) as error:  # 2026-13-45; a number of 5,000 digits
            raise self._error(node, f"not a value: {error}") from error
        return value

    def _error(self, node: yaml.Node, message: str) -> InputError:
        """Return an error about a node."""
        return InputError(message, where=f"{self._path}:{node.start_mark.line + 1}")
