"""The chat template renders as inference servers do, and says what is wrong with it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from kvbench.errors import InputError
from kvbench.text.chat_template import ChatTemplate, Kept, _Texts

HELLO = [{"role": "user", "content": "hello"}]
SAY = "{% macro say(n, told) %}{% for one in told %}{{ one.text }}{% endfor %}{% endmacro %}"


def render(source, messages=HELLO, **options):
    """Render `source` with a fixed date and two special tokens."""
    template = ChatTemplate(
        source,
        where="model/chat_template.jinja",
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        now=lambda: datetime(2026, 2, 3, tzinfo=UTC),
    )
    return template.render(messages, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param("{{ bos_token }}{{ eos_token }}", "<s></s>", id="special tokens"),
        pytest.param(
            "  {% if true %}\nyes\n  {% endif %}\n", "yes\n", id="blocks leave no whitespace"
        ),
        pytest.param(
            "{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]', id="json"
        ),
        pytest.param("{{ '<é>' | tojson }}", '"<é>"', id="json for a model, not for HTML"),
        pytest.param(
            "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, separators=(',', ':'), "
            "sort_keys=True) }}",
            '{"a":1,"b":"\\u00e9"}',
            id="json in whatever form",
        ),
        pytest.param("{{ [1] | tojson(indent=1) }}", "[\n 1\n]", id="json with indents"),
        pytest.param("{{ strftime_now('%d %b %Y') }}", "03 Feb 2026", id="the date is an argument"),
        pytest.param("{% generation %}a{% endgeneration %}", "a", id="marks for training"),
        pytest.param(
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "1",
            id="loop controls",
        ),
        pytest.param("{{ tools is none }}", "True", id="no tools"),
    ],
)
def test_a_template_renders_as_on_a_server(source, text):
    """Whitespace, filters, functions and tags of model repositories are there."""
    assert render(source) == text


def test_a_key_of_a_message_is_found_by_either_notation_and_a_method_is_no_key():
    """As in Jinja's own sandbox: methods first, then keys, then nothing."""
    messages = [{"role": "user", "items": 3}]
    for source, text in (
        ("{{ messages[0].role }}{{ messages[0]['role'] }}", "useruser"),
        ("{{ messages[0].content is defined }}{{ messages[0].content }}", "False"),
        ("{{ messages[0].items is number }}{{ messages[0]['items'] }}", "False3"),
        ("{{ messages[0].get('role') }}{{ messages[0].__class__ }}", "user"),
    ):
        assert render(source, messages) == text


def test_the_generation_prompt_can_be_left_out():
    """The template is told whether an answer is to follow."""
    source = "{% if add_generation_prompt %}>{% endif %}"
    assert render(source) == ">"
    assert render(source, add_generation_prompt=False) == ""


def test_tools_and_arguments_of_a_request_are_handed_over():
    """Arguments that a template does not ask for are left out, as a server leaves them out."""
    source = (
        "{{ tools[0].name }}{% if thinking is defined %}{{ thinking }}{% endif %}{{ eos_token }}"
    )
    tools = [{"name": "read"}]
    assert render(source, tools=tools) == "read</s>"
    assert render(source, tools=tools, arguments={"thinking": False, "x": 1}) == "readFalse</s>"
    assert render(source, tools=tools, arguments={"eos_token": "!"}) == "read!"
    with pytest.raises(InputError, match="expected arguments of the template's own, got 'tools'"):
        render(source, arguments={"tools": tools})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("{{ raise_exception('no system role') }}", "no system role", id="its own"),
        pytest.param("{{ messages[5].content.x }}", "list object has no element 5", id="a bug"),
        pytest.param("{{ ''.__class__.__mro__ }}", "unsafe", id="an escape"),
        pytest.param("{{ messages.append(1) }}", "unsafe", id="a change to its input"),
    ],
)
def test_a_template_that_fails_is_an_input_error(source, says):
    """Whatever a template does, the user learns that it was the template."""
    with pytest.raises(InputError, match=says) as caught:
        render(source)
    assert caught.value.message.startswith("model/chat_template.jinja: the chat template refuses")
    assert caught.value.hint


def test_a_template_that_does_not_compile_names_its_line():
    """File, line and the parser's sentence."""
    with pytest.raises(InputError) as caught:
        render("a\n{% if %}")
    assert caught.value.message.startswith(
        "model/chat_template.jinja:2: the chat template does not"
    )


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% set content = messages[0].content %}{% for c in content %}{{ c }}{% endfor %}", True),
        ("{% for m in messages if m.role == 'user' %}{{ m['content'] }}{% endfor %}", False),
        (SAY + "{% for m in messages %}{{ say(1, m.content) }}{% endfor %}", True),
        (SAY + "{% for m in messages %}{{ say(1, told=m.content) }}{% endfor %}", True),
        (SAY + "{% for m in messages %}{{ say(m.content, m.tools) }}{% endfor %}", False),
    ],
)
def test_a_template_that_loops_over_a_content_may_read_parts(source, reads):
    """It is handed the parts; any other is handed one text."""
    assert ChatTemplate(source, where="t", special_tokens={}).reads_parts is reads


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% set ns = namespace(a=0, b='x') %}{{ ns.a }}{{ ns.b }}{{ ns.c }}", "0x"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.x }}{% endfor %}",
         "0True"),
        ("{{ 'a-b'.split('-')[1] }}{{ 'a'.x }}{{ '{}!'.format('b') }}", "bb!"),
        ("{{ messages[0].x }}{{ tools[0].x }}{{ tools[0].name }}{{ tools[0].keys() | list }}",
         "f['name']"),
        ("{{ '{0.__class__}'.format('a') }}", ""),
        ("{{ 'a'.__class__.__mro__ }}", None),
        ("{% for m in messages %}{{ loop.__class__.__mro__ }}{% endfor %}", None),
        ("{% set ns = namespace() %}{{ ns.__class__.__mro__ }}", None),
        ("{{ tools[0]._told.x }}", None),
        ("{{ tools[0].update({}) }}", None),
    ],
)  # fmt: skip
def test_what_is_found_at_once_is_what_jinja_finds_and_no_more(source, text):
    """Attributes of texts, loops, namespaces and objects; what begins with `_` stays closed."""
    if text is not None:
        assert render(source, tools=[Kept({"name": "f"})]) == text
        return
    with pytest.raises(InputError):
        render(source, tools=[Kept({"name": "f"})])


@pytest.mark.parametrize("name", ["role", "items", "x", "first", "index0", "upper", "_told", "n"])
@pytest.mark.parametrize(
    "thing",
    [
        "messages[0]", "messages[1]", "messages[0].deep", "messages", "messages[0].role", "ns",
        "loop", "nothing", "messages[0].none", "(messages[0].x or messages[1])", "[loop][0]",
    ],
)  # fmt: skip
def test_an_attribute_or_a_key_is_what_plain_jinja_finds(thing, name):
    """Whatever it is of, and however it is written; in loops, conditions, macros and filters."""
    found = (
        "{% macro tell(m, by=THING.NAME) %}{{ by is defined }}{% endmacro %}"
        "{% for one in messages if one.role %}"
        "{{ THING.NAME is defined }}{{ THING['NAME'] is defined }}"
        "{{ (THING.NAME or '') is string }}"
        "{{ THING['NAME'] == THING.NAME }}{{ (THING.NAME | string)[:4] }}{{ tell(one) }}"
        "{% if THING['NAME'] and THING.NAME %}yes{% endif %}{% endfor %}"
    )
    source = "{% set ns = namespace(n=0, role=false, x='') %}" + found
    source = source.replace("THING", thing).replace("NAME", name)
    deep: dict[str, object] = {"role": "", "items": 7, "n": {}}
    said = [{"role": "user", "deep": deep, "none": None}, Kept({"role": "x", "index0": 3})]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        expected = plain.from_string(source).render(messages=said)
    except (UndefinedError, SecurityError):
        expected = None
    try:
        text = ChatTemplate(source, where="t", special_tokens={}).render(said)
    except InputError:
        text = None
    assert text == expected


@pytest.mark.parametrize(
    "sum_",
    [
        "'a' + m.content + 'b'", "'a' + m.content + m.none", "'a' + m.x", "'a' + 1", "'' + m.role",
        "'a' + (1 + 2) | string", "'a' + 'b'", "'a' + m.content | trim + '\\n'", "m.content + 'a'",
        "'a' + (m.content if m.role == 'user' else 'x') + 'b' ~ 3", "1 + 2", "'a' + '{}'.format(1)",
        "'a' + say(m)", "'a' + m.content[:2] + m['content'][2:]", "'a' + m.list", "'<' + m.deep.x",
    ],
)  # fmt: skip
def test_texts_that_are_added_are_printed_one_after_the_other(sum_):
    """As plain Jinja prints their sum, and where there is none, it fails as there."""
    source = (
        "{% macro say(m) %}{{ '[' + m.role + ']' }}{% endmacro %}{{ 'x' }}"
        "{% for m in messages %}a{{ SUM }}{{- SUM }}{% set t %}{{ SUM }}{% endset %}{{ t }}"
        "{% endfor %}".replace("SUM", sum_)
    )
    said = [{"role": "user", "content": " river ", "none": None, "list": [1], "deep": {"x": "y"}}]
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    expected, fails, wrong = None, "", ""
    try:
        expected = plain.from_string(source).render(messages=said)
    except (TypeError, UndefinedError) as error:
        fails = str(error)
    try:
        made = ChatTemplate(source, where="t", special_tokens={}).render(said)
    except InputError as error:
        made, wrong = None, error.message
    assert made == expected
    assert fails in wrong


def test_a_content_that_is_printed_is_the_object_that_came():
    """Also where texts are added to it: it is one of the parts."""
    said = [{"role": "user", "content": "river " * 100}]
    for source in ("{{ messages[0].content }}", "{{ '<' + messages[0].content + '>' + '\\n' }}"):
        parts = ChatTemplate(source, where="t", special_tokens={}).parts(said)
        assert any(part is said[0]["content"] for part in parts)


@given(st.text(st.characters(exclude_categories=())) | st.text('\x00\x1f\x7f\x80"\\/\n\t\b\u2028'))
def test_a_text_as_json_is_what_python_makes_of_it(text):
    """Also halves of characters, and however else it may be written."""
    said = [{"role": "user", "content": text}]
    template = "{{ messages[0].content | tojson }}{{ messages[0].content | tojson(indent=2) }}"
    made = ChatTemplate(template, where="t", special_tokens={}).render(said)
    assert made == 2 * json.dumps(text, ensure_ascii=False)


def test_texts_as_json_are_known_as_long_as_there_is_room():
    """Then all of them are forgotten."""
    texts = _Texts(100)
    first = texts.json("a" * 30)
    assert texts.json("a" * 30) is first
    texts.json("b" * 80)
    assert texts.json("a" * 30) is not first


def test_what_many_prompts_have_in_them_is_made_json_once():
    """But each way of writing it for itself."""
    kept = Kept({"b": 1, "a": "é"})
    for _ in range(2):
        assert render("{{ tools[0] | tojson }}", tools=[kept]) == '{"b": 1, "a": "é"}'
        assert render("{{ tools[0] | tojson(indent=1) }}", tools=[kept]) == (
            '{\n "b": 1,\n "a": "é"\n}'
        )
        assert render("{{ tools[0] | tojson(sort_keys=true) }}", tools=[kept]) == (
            '{"a": "é", "b": 1}'
        )
        assert render("{{ tools[0] | tojson(separators=[',', ':']) }}", tools=[kept]) == (
            '{"b":1,"a":"é"}'
        )
    assert len(kept._told) == 3
