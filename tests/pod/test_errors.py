"""Errors in vLLM's form, bounded whatever came in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kvbench.pod.errors import MAX_FINDING, ApiError, invalid, to_json


def test_an_error_has_four_fields():
    """In vLLM's order."""
    assert ApiError("no", param="x").body == (
        b'{"error":{"message":"no","type":"BadRequestError","param":"x","code":400}}'
    )


def finding(**fields: object) -> dict[str, object]:
    """Return a finding of a validation."""
    return {"type": "t", "loc": ("body", "x"), "msg": "m", "input": 1} | fields


def test_findings_are_counted_and_ten_are_shown():
    """One malformed body must not get a long answer."""
    message = json.loads(invalid([finding()] * 12).body)["error"]["message"]
    assert message.startswith("12 validation errors:\n")
    assert message.count("\n") == 11
    assert message.endswith("...and 2 more errors")


def test_the_input_is_summarised():
    """Containers by their size, texts by their beginning."""
    shown = str(invalid([finding(input=[1, 2]), finding(input="x" * 500)]))
    assert "<list of 2 items>" in shown
    assert "x" * 200 + "...[truncated]" in shown


def test_a_place_has_no_names_of_the_validator():
    """Only what a client wrote."""
    error = invalid([finding(loc=("body", "function-wrap[x()]", "prompt", "list[int]", 0))])
    assert json.loads(error.body)["error"]["param"] == "body.prompt.0"


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=5), st.text())
def test_no_finding_is_longer_than_the_bound(value: object, text: str):
    """Nor does any input make the answer fail."""
    body = invalid([finding(input=value, msg=text * 500)]).body
    assert len(json.loads(body)["error"]["message"]) < MAX_FINDING + 100


def test_json_is_as_compact_as_vllms():
    """Characters are not escaped."""
    assert to_json({"a": [1, None], "b": "ä"}) == '{"a":[1,null],"b":"ä"}'.encode()
