import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.gates import grammar
from kvbench.gates.gate import SUBJECTS, Absolute, Condition, Limit, Relative
from kvbench.gates.grammar import parse_gate

DOCS = Path(__file__).parents[2] / "docs" / "gates.md"


@pytest.mark.parametrize(
    ("text", "measure", "bound"),
    [
        ("ttft p95 < 400ms", "ttft p95", Absolute("<", 0.4)),
        ("ttft_due p99.9 <= 2s", "ttft_due p99.9", Absolute("<=", 2.0)),
        ("e2e max < 1min", "e2e max", Absolute("<", 60.0)),
        ("hit_rate > 0.97 of ceiling", "hit_rate of ceiling", Absolute(">", 0.97)),
        ("hit_rate of ceiling >= 97%", "hit_rate of ceiling", Absolute(">=", 0.97)),
        ("hit_rate >= 0.80", "hit_rate", Absolute(">=", 0.8)),
        ("errors < 0.1%", "errors", Absolute("<", 0.001)),
        ("errors<=0", "errors", Absolute("<=", 0.0)),
        ("balance max/mean < 1.3", "balance max/mean", Absolute("<", 1.3)),
        ("kv_usage max < 0.95", "kv_usage max", Absolute("<", 0.95)),
        ("kv_usage{pod=10.0.0.1:8000} p95 < 90%", "kv_usage{pod=10.0.0.1:8000} p95",
         Absolute("<", 0.9)),
        ("waiting max <= 10", "waiting max", Absolute("<=", 10.0)),
        ("evictions < 30/min", "evictions", Absolute("<", 0.5)),
        ("throughput >= 500/s", "throughput", Absolute(">=", 500.0)),
        ("ttft p95 no worse than baseline + 5%", "ttft p95", Relative(1.05, 0.0)),
        ("ttft p95 no worse than baseline + 20ms", "ttft p95", Relative(1.0, 0.02)),
        ("hit_rate no worse than baseline - 1%", "hit_rate", Relative(0.99, 0.0)),
        ("hit_rate no worse than baseline - 0.01", "hit_rate", Relative(1.0, -0.01)),
        ("evictions no worse than baseline", "evictions", Relative(1.0, 0.0)),
    ],
)  # fmt: skip
def test_a_line_says_what_is_measured_and_what_it_is_held_against(text, measure, bound):
    """Units become seconds, shares and rates per second."""
    gate = parse_gate(text)
    assert str(gate.measure) == measure
    assert gate.bound == bound
    assert gate.text == text


def test_a_scope_holds_numbers_and_names():
    """Turns and context are compared, names are matched; `k` is a thousand."""
    gate = parse_gate('ttft{turn>1, context<=8k, pod!=pod-3, group="team 1*"} p95 < 1s')
    assert gate.measure.scope == (
        Condition("turn", ">", 1.0),
        Condition("context", "<=", 8000.0),
        Condition("pod", "!=", "pod-3"),
        Condition("group", "=", "team 1*"),
    )


def test_a_goodput_holds_its_limits_in_seconds():
    """Each limit is of one latency."""
    gate = parse_gate("goodput(ttft < 500ms, tpot <= 40ms) >= 0.95")
    assert gate.measure.limits == (Limit("ttft", "<", 0.5), Limit("tpot", "<=", 0.04))
    assert gate.bound == Absolute(">=", 0.95)


def test_words_at_the_end_say_how_a_gate_is_taken():
    """`exact` judges the number itself; `abort_on_fail` ends the run; counts are always exact."""
    gate = parse_gate("errors < 1% exact abort_on_fail")
    assert (gate.exact, gate.abort_on_fail) == (True, True)
    plain = parse_gate("errors < 1%")
    assert (plain.exact, plain.abort_on_fail) == (False, False)
    assert parse_gate("balance max/mean < 1.3").exact


@pytest.mark.parametrize(
    ("text", "column", "expected", "found"),
    [
        ("", 0, "what is measured", "the end"),
        ("ttfft p95 < 4ms", 0, "what is measured", '"ttfft"'),
        ("ttft < 4ms", 5, "p95 or max after ttft", '"<"'),
        ("ttft p101 < 1s", 5, "a percentile between 0 and 100", '"p101"'),
        ("ttft p95 400ms", 9, "a comparison, or `no worse than baseline`", '"400ms"'),
        ("ttft p95 <", 10, "a duration such as 400ms or 2s", "the end"),
        ("ttft p95 < 400", 11, "a duration such as 400ms or 2s", '"400"'),
        ("ttft p95 < 40%", 11, "a duration such as 400ms or 2s", '"40%"'),
        ("hit_rate < 0.5", 9, "> or >=", '"<"'),
        ("hit_rate > 80", 11, "a share such as 0.95 or 95%", '"80"'),
        ("errors < 1% of ceiling", 12, "no ceiling here", '"of"'),
        ("goodput >= 0.9", 8, "`(`", '">="'),
        ("goodput(ttft > 5ms) >= 0.9", 13, "< or <=", '">"'),
        ("goodput(itl < 5ms) >= 0.9", 8, "one of ttft, ttft_due, tpot, e2e", '"itl"'),
        ("ttft{turns>1} p95 < 1s", 5, "one of turn, context, session, group, pod", '"turns"'),
        ("ttft{turn>x} p95 < 1s", 10, "a number such as 3 or 8k", '"x"'),
        ("ttft{turn>1 p95 < 1s", 12, "`}`", '"p95"'),
        ("kv_usage{turn>1} max < 0.9", 9, "pod", '"turn"'),
        ("ttft p95 < 1s abort", 14, "the end, `exact` or `abort_on_fail`", '"abort"'),
        ("ttft p95 < 1s exact exact", 20, "the end, `exact` or `abort_on_fail`", '"exact"'),
        ("ttft p95 no better than baseline", 12, "`worse`", '"better"'),
        ("evictions < 1", 12, "a rate such as 1/s or 30/min", '"1"'),
        ("balance max/mean < 1.3 §", 23, "a word, a number or a sign", '"§"'),
    ],
)
def test_an_error_points_at_the_character(text, column, expected, found):
    """File, line, what was expected, what stands there, and a mark below it."""
    with pytest.raises(InputError) as caught:
        parse_gate(text, "gates.yaml:3")
    head, line, mark = caught.value.message.split("\n")
    assert head == f"gates.yaml:3: expected {expected}, got {found}"
    assert line == f"    {text}"
    assert mark.rstrip("^") == "    " + " " * column
    assert mark.endswith("^")


def test_a_misspelt_word_gets_the_nearest_one():
    """The hint is the way out."""
    with pytest.raises(InputError) as caught:
        parse_gate("hit_rates >= 0.8")
    assert caught.value.hint == 'did you mean "hit_rate"?'


@given(st.text(alphabet='tf p95<>=40ms.%(){}hitrae_of bsln+-/,!k"*', max_size=40))
def test_any_text_is_a_gate_or_an_input_error(text):
    """Nothing else ever comes out, whatever goes in."""
    try:
        found = parse_gate(text).measure.subject.name
    except InputError as error:
        found = error.message
    assert found in SUBJECTS or "^" in found


@given(st.sampled_from(sorted(SUBJECTS)), st.integers(1, 99), st.integers(1, 9))
def test_the_canonical_text_of_a_measure_reads_as_the_same_measure(name, percentile, turn):
    """A baseline finds its values under it."""
    subject = SUBJECTS[name]
    limits = "(ttft<0.5s)" if name == "goodput" else ""
    scope = "{pod=a*}" if subject.server else f"{{turn>{turn}, pod=a*}}"
    first = (*subject.statistics, "")[0]
    statistic = f" p{percentile}" if first == "p" else f" {first}"
    text = f"{name}{limits}{scope}{statistic} no worse than baseline"
    measure = parse_gate(text).measure
    assert parse_gate(f"{measure} no worse than baseline").measure == measure


def test_every_subject_and_every_rule_of_the_grammar_is_in_the_docs():
    """The docs hold the grammar of the parser's own docstring, and a row for each subject."""
    docs = DOCS.read_text()
    assert grammar.__doc__ is not None
    rules = re.findall(r"^    \w+ +=.*?;", grammar.__doc__, re.DOTALL | re.MULTILINE)
    assert len(rules) == 11
    for rule in rules:
        assert rule[4:].replace("\n    ", "\n") in docs
    for name, subject in SUBJECTS.items():
        assert re.search(rf"^\| `{name}` .*\| {re.escape(subject.about)} \|", docs, re.MULTILINE)


def test_every_gate_in_the_docs_is_one():
    """Examples are executed."""
    blocks = re.findall(r"^ *- (.+)$", "\n".join(
        re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)), re.MULTILINE)  # fmt: skip
    gates = [line for line in blocks if line.split("{")[0].split("(")[0].split()[0] in SUBJECTS]
    assert len(gates) >= 12
    for line in gates:
        parse_gate(line)
