"""From a workload file to a `Workload`, or to one sentence that says what is wrong and where.

    workloads/chat.yaml:14: sessions.turns: expected at least 1, got 0

The bounds stand in `kvbench.workload.spec`; here the file's short forms, its lines and the
validator's findings are brought together. Of several mistakes the first in the file is named.
"""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from kvbench.errors import InputError
from kvbench.workload import distributions, spec, strategies
from kvbench.workload.yaml_file import YamlFile, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

_REFERENCE = "the keys are described in workloads/README.md"

_EXPECTED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} items",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-'",
    "literal_error": "{expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "dataclass_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
}
"""What a validator's finding says was expected, by its type."""

_OWNERS: dict[str, type] = {
    "sessions": spec.Sessions,
    "prefixes": spec.PrefixLevel,
    "constant": spec.ConstantArrival,
    "poisson": spec.PoissonArrival,
    "gamma": spec.GammaArrival,
    "burst": spec.BurstArrival,
    "ramp": spec.RampArrival,
    "ladder": spec.LadderArrival,
    "steps": spec.Step,
    "replay": spec.ReplayArrival,
    "users": spec.UsersArrival,
    "tools": spec.Tools,
    "subagents": spec.Subagents,
    "drop_oldest": strategies.DropOldest,
    "gist": strategies.Gist,
    "gist_recent": strategies.GistRecent,
    "summary": strategies.Summary,
    "working_set": spec.WorkingSet,
    "empirical": distributions.Empirical,
    "uniform": distributions.Uniform,
    "normal": distributions.Normal,
    "lognormal": distributions.LogNormal,
    "exponential": distributions.Exponential,
    "zipf": distributions.Zipf,
    "choice": distributions.Choice,
}
"""Whose keys may stand below a key: to name the nearest one."""


def load_workload(path: Path) -> spec.Workload:
    """Read and check a workload file.

    Raises:
        InputError: The file cannot be read, or something in it is not as it must be.
    """
    file = read_yaml(path)
    if not isinstance(file.content, dict):
        raise InputError(
            f"expected keys and values, got {_shown(file.content)}",
            where=file.where(()),
            hint=_REFERENCE,
        )
    try:
        return _adapter().validate_python(file.content, context={"folder": path.parent})
    except ValidationError as error:
        found = min(error.errors(), key=lambda finding: _line(file, finding))
        raise _explain(file, found) from None


@cache
def _adapter() -> TypeAdapter[spec.Workload]:
    """Return the validator: built on first use, for it takes 50 ms."""
    return TypeAdapter(spec.Workload)


def _line(file: YamlFile, finding: ErrorDetails) -> int:
    """Return the line of a finding, to name the first one; findings about the whole come last."""
    path = _path(file, finding)
    return file.lines[path] if path else 1 << 30


def _path(file: YamlFile, finding: ErrorDetails) -> tuple[str | int, ...]:
    """Return where in the file a finding is: the validator's own inner names are left out."""
    path: tuple[str | int, ...] = ()
    for step in finding["loc"]:
        if (*path, step) in file.lines:
            path = (*path, step)
    return path


def _explain(file: YamlFile, finding: ErrorDetails) -> InputError:
    """Return the error for people that says what a finding of the validator says."""
    path = _path(file, finding)
    name = ".".join(map(str, path))
    kind, last = finding["type"], str(finding["loc"][-1]) if finding["loc"] else ""
    if kind == "missing":
        inner = f"{name}.{last}" if name else last
        return InputError(f"{inner}: missing", where=file.where(path), hint=_REFERENCE)
    if kind == "unexpected_keyword_argument":
        near = get_close_matches(last, _known(path[:-1]), n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(_known(path[:-1]))}"
        return InputError(f"{name}: unknown key", where=file.where(path), hint=hint)
    if kind == "value_error":
        message = str(finding["ctx"]["error"])
        if not path and ": " in message:  # a rule between keys names the key that broke it
            words = message.split(": ", 1)[0].split(".")
            blamed = tuple(int(word) if word.isdigit() else word for word in words)
            return InputError(message, where=file.where(blamed), hint=_REFERENCE)
        return InputError(f"{name}: {message}", where=file.where(path), hint=_REFERENCE)
    context = finding.get("ctx", {})
    expected = _EXPECTED.get(kind, finding["msg"]).format(**context)
    given, hint = finding["input"], _REFERENCE
    if kind == "union_tag_invalid":
        given = context["tag"]
        known = context["expected_tags"].replace("'", "").split(", ")
        if near := get_close_matches(str(given), known, n=1):
            hint = f'did you mean "{near[0]}"?'
    return InputError(
        f"{name}: expected {expected}, got {_shown(given)}", where=file.where(path), hint=hint
    )


def _known(path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that may stand below `path`."""
    words = [step for step in path if isinstance(step, str)]
    owner = _OWNERS.get(words[-1], spec.Workload) if words else spec.Workload
    return [field.name for field in dataclasses.fields(owner) if field.name != "kind"]


def _shown(value: object) -> str:
    """Return a value for a message, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
