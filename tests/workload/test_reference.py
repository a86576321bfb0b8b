"""workloads/README.md says what the parser does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.workload import distributions, spec
from kvbench.workload.parse import load_workload
from kvbench.workload.trace import FORMATS

REFERENCE = (Path(__file__).parent.parent.parent / "workloads" / "README.md").read_text("utf-8")
EXAMPLE = re.search(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)[1]
ARRIVALS = re.findall(
    r"^\| `(\{(?:poisson|constant|gamma|burst|ramp|ladder|replay|users): .*?\}\})` \|",
    REFERENCE,
    re.MULTILINE,
)
CONTEXTS = re.findall(r"^\| `(\{.*?\}\})` \|", REFERENCE.split("## context")[1], re.MULTILINE)[:5]
POPULARITIES = ["uniform", "even", "{zipf: 1.1}", "{weights: [70, 20, 10]}"]
NUMBERS = REFERENCE.split("## Numbers")[1]
WRITTEN = re.findall(r"^\| `(120|\{.*?\})` \|", NUMBERS, re.MULTILINE)


def parse(tmp_path, text):
    """Parse a workload file."""
    path = tmp_path / "support.yaml"
    path.write_text(text, encoding="utf-8")
    return load_workload(path)


def test_the_example_is_a_workload(tmp_path):
    """As it stands in the reference."""
    workload = parse(tmp_path, EXAMPLE)
    assert workload.name == "support"
    assert [level.count for level in workload.prefixes] == [2, 5]


def test_the_error_in_the_reference_is_the_error_one_gets(tmp_path):
    """Line and words."""
    broken = EXAMPLE.replace("turns: {uniform: [1, 6]}", "turns: 0")
    line = next(i for i, text in enumerate(broken.splitlines(), 1) if "turns: 0" in text)
    said = f"support.yaml:{line}: sessions.turns: expected at least 1, got 0"
    with pytest.raises(InputError) as caught:
        parse(tmp_path, broken)
    assert caught.value.message.endswith(said)
    assert said in REFERENCE


@pytest.mark.parametrize("written", ARRIVALS)
def test_every_arrival_of_the_reference_parses(tmp_path, written):
    """All eight kinds are there."""
    assert len(ARRIVALS) == 8
    parse(tmp_path, EXAMPLE.replace("arrival:\n  poisson: {rate: 2}", f"arrival: {written}"))


@pytest.mark.parametrize("written", WRITTEN)
def test_every_number_of_the_reference_parses(tmp_path, written):
    """In the place of a pause."""
    assert len(WRITTEN) == 9
    (tmp_path / "lengths.txt").write_text("3\n5\n")
    parse(tmp_path, re.sub("think: .*", f"think: {written}", EXAMPLE))


@pytest.mark.parametrize("written", CONTEXTS)
def test_every_context_of_the_reference_parses(tmp_path, written):
    """All five kinds are there."""
    assert len(CONTEXTS) == 5
    parse(tmp_path, EXAMPLE + f"\ncontext: {written}\n")


@pytest.mark.parametrize("written", POPULARITIES)
def test_every_popularity_of_the_reference_parses(tmp_path, written):
    """As it is written there."""
    assert f"| `{written}` | " in REFERENCE
    parse(
        tmp_path,
        EXAMPLE.replace(
            "count: 2, tokens: 1000, popularity: {zipf: 1.0}",
            f"count: 3, tokens: 1000, popularity: {written}",
        ),
    )


def test_every_key_and_every_kind_is_described():
    """A new field fails here until it has its paragraph."""
    for field in dataclasses.fields(spec.Workload):
        assert f"\n## {field.name}\n" in REFERENCE
    for owner in (spec.PrefixLevel, spec.Sessions, spec.Tools, spec.Subagents):
        for field in dataclasses.fields(owner):
            assert re.search(
                rf"^\| (`\w+`, )*`{field.name}`(, `\w+`)* \| ", REFERENCE, re.MULTILINE
            )
    kinds = [name.lower() for name in vars(distributions) if f"{{{name.lower()}: " in NUMBERS]
    assert kinds == ["uniform", "normal", "lognormal", "exponential", "zipf", "choice", "empirical"]


def test_every_workload_file_is_in_the_table():
    """And nothing else is."""
    listed = re.findall(r"^\| `([a-z0-9-]+\.yaml)` \|", REFERENCE, re.MULTILINE)
    files = (Path(__file__).parent.parent.parent / "workloads").glob("*.yaml")
    assert sorted(listed) == sorted(file.name for file in files)


def test_every_format_of_traces_is_in_the_table():
    """And nothing else is."""
    traces = REFERENCE.split("## Traces")[1].split("## Numbers")[0]
    first = re.findall(r"^\| (`[^|]*`) \|", traces, re.MULTILINE)
    assert sorted(re.findall(r"`([a-z-]+)`", " ".join(first))) == sorted(FORMATS)
