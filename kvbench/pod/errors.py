"""Errors as vLLM answers them: a body of one form, and the statuses that go with it.

vLLM has two kinds. A request whose shape is wrong is told what its validation found, up to ten
findings, each with the place, the rule and a bounded piece of the input (`type` is "Bad Request").
A request that is well-formed and cannot be served is told why in a sentence (`type` ends in
"Error"). What does not even parse, and what no route takes, is answered by the framework below it,
in a form of its own: `{"detail": …}`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_FINDINGS = 10
MAX_INPUT = 200
MAX_FINDING = 1000

_FORM = "Bad Request"  # what is said of a request whose form is wrong
_BRACKETS = re.compile(r"[\[\]{}()]")
_MARKERS = {"str", "int", "float", "bool", "list", "dict", "none", "nullable", "union"}


def to_json(value: object) -> bytes:
    """Return JSON as vLLM writes it: no spaces, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


class ApiError(Exception):
    """A request that is refused.

    Args:
        message: The sentence.
        status: HTTP status.
        kind: vLLM's name for the class of error.
        param: The parameter that is to blame.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        error = {"message": message, "type": kind, "param": param, "code": status}
        self.body = to_json({"error": error})


def in_anthropics_form(error: ApiError) -> bytes:
    """Return the body of a refusal as Anthropic's paths have it: not of what its form is wrong."""
    if error.kind == _FORM or isinstance(error, DetailError):
        return error.body
    return to_json({"type": "error", "error": {"type": error.kind, "message": str(error)}})


class DetailError(ApiError):
    """A refusal in the framework's own form."""

    def __init__(self, detail: str, *, status: int) -> None:
        super().__init__(detail, status=status)
        self.body = to_json({"detail": detail})


def bad_parameter(name: str, value: object, sentence: str) -> ApiError:
    """Return the refusal of a parameter's value; vLLM repeats both behind the sentence."""
    return ApiError(f"{sentence} (parameter={name}, value={value})", param=name)


def unknown_model(name: str, served: str) -> ApiError:
    """Return the refusal of a model that is not served here."""
    return ApiError(
        f"The model `{name}` does not exist. Valid aliases: {served}.",
        status=404,
        kind="NotFoundError",
        param="model",
    )


def invalid(findings: Sequence[Mapping[str, object]]) -> ApiError:
    """Return the refusal of a body whose validation found something.

    Args:
        findings: As pydantic reports them, with `loc` beginning at "body".
    """
    count = len(findings)
    label = "error" if count == 1 else "errors"
    lines = [_finding(finding) for finding in findings[:MAX_FINDINGS]]
    if count > MAX_FINDINGS:
        lines.append(f"...and {count - MAX_FINDINGS} more {label}")
    message = f"{count} validation {label}:\n" + "\n".join(f"  {line}" for line in lines)
    return ApiError(message, kind=_FORM, param=_place(findings[0]["loc"]))


def unsupported_media_type() -> ApiError:
    """Return the refusal of a body that does not say it is JSON."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(message, kind=_FORM)


def not_json(error: json.JSONDecodeError) -> ApiError:
    """Return the refusal of a body that is no JSON."""
    return invalid(
        [
            {
                "type": "json_invalid",
                "loc": ("body", error.pos),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error.msg},
            }
        ]
    )


def _finding(finding: Mapping[str, object]) -> str:
    """Return one finding, bounded."""
    shown = {key: value for key, value in finding.items() if key != "url"}
    shown["loc"] = _place(finding["loc"])
    if "input" in shown:
        shown["input"] = _summary(shown["input"])
    text = str(shown)
    return text if len(text) <= MAX_FINDING else text[:MAX_FINDING] + "...[truncated]"


def _place(loc: object) -> str:
    """Return the path to what is wrong, without the validator's own markers."""
    parts = [str(part) for part in loc] if isinstance(loc, tuple | list) else [str(loc)]
    named = [p for p in parts if not (_BRACKETS.search(p) or p.lower() in _MARKERS or p[:1] == "_")]
    return ".".join(named or parts)


def _summary(value: object) -> str:
    """Return a bounded stand-in for the input."""
    if isinstance(value, list | tuple | dict | set):
        return f"<{type(value).__name__} of {len(value)} items>"
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # a whole number of more digits than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= MAX_INPUT else text[:MAX_INPUT] + "...[truncated]"
