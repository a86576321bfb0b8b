"""Traces of every format: what a few lines of each become."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import fakes_workload
import pytest

from kvbench.errors import InputError
from kvbench.oracle.ceiling import ceiling
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.plan import Segment
from kvbench.workload.reading import TraceOptions
from kvbench.workload.render import Renderer
from kvbench.workload.trace import guess_format, read_trace

COUNT = Tokenizer.load().encode


def write(tmp_path, content, name="trace.json"):
    """Write a file: text as it is, lists of dicts as lines, all else as JSON."""
    path = tmp_path / name
    if not isinstance(content, str):
        lines = isinstance(content, list) and name.endswith("l")
        content = "".join(f"{json.dumps(x)}\n" for x in content) if lines else json.dumps(content)
    path.write_text(content)
    return path


def sent(plan):
    """Session, turn, due time, pause, prompt tokens and answer tokens of each turn."""
    return [(t.session, t.turn, t.at, t.think, t.content_tokens, t.max_tokens) for t in plan.turns]


WEKA = {
    "id": "t1", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 2.0},
        {"t": 2.5, "type": "subagent", "agent_id": "x", "duration_ms": 4000, "requests": [
            {"t": 2.5, "type": "n", "in": 64, "out": 3, "hash_ids": [7], "api_time": 1.0},
            {"t": 4.0, "type": "n", "in": 129, "out": 4, "hash_ids": [7, 8], "think_time": 0.5},
        ]},
        {"t": 3.0, "type": "s", "in": 192, "out": 0, "hash_ids": [1, 2, 3], "think_time": 1.0},
        {"t": 9.0, "type": "s", "in": 200, "out": 5, "hash_ids": [1, 2, 3], "think_time": 2.0},
    ],
}  # fmt: skip


def test_wekas_conversations_have_pauses_and_subagents_that_join(tmp_path):
    """The next request that begins after a sub-agent had ended waits for it."""
    plan = read_trace(write(tmp_path, WEKA))
    assert [(t.session, t.turn, t.at, t.think, t.after) for t in plan.turns] == [
        ("t1", 1, 0.0, 0, ()),
        ("t1.x", 1, None, 0, (0,)),
        ("t1.x", 2, None, 0.5, ()),
        ("t1", 2, None, 1.0, ()),
        ("t1", 3, None, 2.0, (2,)),
    ]
    assert plan.turns[0].messages[0].segments == (
        Segment("id/t1/1", 64), Segment("id/t1/2", 64), Segment("tail/t1/0", 2),
    )  # fmt: skip
    assert [t.content_tokens for t in plan.turns] == [130, 64, 129, 192, 200]
    assert [t.max_tokens for t in plan.turns] == [9, 3, 4, 1, 5]


def test_a_folder_of_weka_files_begins_at_a_rate(tmp_path):
    """Sessions have no common clock; ids mean something in their own file alone."""
    for name in ("a", "b"):
        write(tmp_path, {**WEKA, "id": name}, f"{name}.json")
    plan = read_trace(tmp_path, TraceOptions(rate=5.0))
    starts = [t.at for t in plan.turns if t.at is not None]
    assert starts[0] == 0
    assert 0 < starts[1] < 5
    assert any("5 sessions a second" in note for note in plan.notes)
    assert not [h for h in ceiling(plan, None, 16).cached_tokens[:1] if h]


CSV = """session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
0,100,0,0,512,64,100
0,100,1,576,128,64,100
0,100,2,300,50,64,0
1,350,0,40,10,8,0
"""


def test_tracelabs_rounds_keep_a_prefix_of_what_was_said(tmp_path):
    """Cut exactly; what was said before the trace is the session's own."""
    plan = read_trace(write(tmp_path, CSV, "rounds.csv"))
    assert sent(plan) == [
        ("s0", 1, 0.1, 0, 512, 64),
        ("s0", 2, None, 0.1, 704, 64),
        ("s0", 3, None, 0.1, 350, 64),
        ("s1", 1, 0.35, 0, 50, 8),
    ]
    assert plan.turns[1].messages[0].segments[:2] == (
        Segment("user/s0/0", 512), Segment("answer/s0/0", 64),
    )  # fmt: skip
    assert plan.turns[2].messages[0].segments[0] == Segment("user/s0/0", 300)
    assert plan.turns[3].messages[0].segments[0] == Segment("before/s1/0", 40)


def test_what_a_round_keeps_is_what_an_endless_cache_hits(tmp_path):
    """With real answers and blocks of one token, but for each answer's last token."""
    plan = read_trace(write(tmp_path, CSV, "rounds.csv"), TraceOptions(history="answers"))
    assert ceiling(plan, None, 1).cached_tokens == (0, 575, 300, 0)


def test_recorded_rounds_have_their_pauses_from_their_time_stamps(tmp_path):
    """From the last event of one to the first of the next."""
    stamps = [("05:40:20.000", "05:40:30.000"), ("05:40:31.500", "05:40:40.000")]
    rows = [
        {
            "session_id": "c:1", "round_index": i, "prefix_tokens": 20 * i,
            "newly_append_tokens": 30, "output_tokens": 7, "model": "m",
            "timing_events": [{"timestamp": f"2026-06-01T{s}Z", "event_type": "x"} for s in pair],
        }
        for i, pair in enumerate(stamps)
    ]  # fmt: skip
    plan = read_trace(write(tmp_path, rows, "rounds.jsonl"))
    assert sent(plan) == [("c:1", 1, 0.0, 0, 30, 7), ("c:1", 2, None, 1.5, 50, 7)]


GREETING = "You are a helpful assistant that answers briefly and with care, as a good friend would."
SHARE_GPT = [
    {"id": "a", "conversations": [
        {"from": "human", "value": GREETING + " Who was Ada?"},
        {"from": "gpt", "value": "A mathematician."},
        {"from": "human", "value": "And Grace?"},
        {"from": "gpt", "value": "A computer scientist."},
        {"from": "human", "value": "Thanks"},
    ]},
    {"id": "b", "conversations": [
        {"from": "human", "value": GREETING + " Who was Emmy?"},
        {"from": "gpt", "value": "A mathematician, too."},
    ]},
    {"id": "c", "conversations": [{"from": "gpt", "value": "Nobody asked."}]},
]  # fmt: skip


def test_share_gpt_becomes_sessions_of_several_turns(tmp_path):
    """A turn for each answer, of exactly its length; a last question gets a default."""
    plan = read_trace(write(tmp_path, SHARE_GPT), TraceOptions(think=2.0, answer_tokens=9))
    first = len(COUNT(GREETING + " Who was Ada?"))
    answers = [len(COUNT("A mathematician.")), len(COUNT("A computer scientist.")), 9]
    talk = [t for t in plan.turns if t.session == "s0"]
    assert [t.max_tokens for t in talk] == answers
    assert [t.think for t in talk] == [0, 2, 2]
    assert talk[0].content_tokens == first
    assert talk[1].content_tokens == first + answers[0] + len(COUNT("And Grace?"))
    assert [m.role for m in talk[2].messages] == ["user", "assistant"] * 2 + ["user"]
    assert plan.sessions == 2
    assert plan.api == "chat"
    assert any("kvbench's own tokenizer" in note for note in plan.notes)
    assert any("without a question are left out" in note for note in plan.notes)


def test_texts_that_begin_alike_still_begin_alike(tmp_path):
    """To within a piece of sixteen tokens; and the words sent have exactly the lengths."""
    plan = read_trace(write(tmp_path, SHARE_GPT))
    first, other = (t for t in plan.turns if t.turn == 1)
    pairs = zip(COUNT(GREETING + " Who was Ada?"), COUNT(GREETING + " Who was Emmy?"), strict=False)
    alike = next(i for i, (a, b) in enumerate(pairs) if a != b)
    shared = [s for s in first.messages[0].segments if s in other.messages[0].segments]
    assert sum(s.tokens for s in shared) == alike // 16 * 16 > 0
    renderer = Renderer(plan, Tokenizer.load())
    for turn in plan.turns:
        assert len(renderer.prompt_ids(turn)) == renderer.prompt_tokens(turn)


def test_message_lists_are_requests_or_conversations(tmp_path):
    """By who spoke last; roles are ours, tool calls and parts of contents are text."""
    rows = [
        {"timestamp": 500, "max_tokens": 5, "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]},
        ]},
        {"timestamp": 1500, "body": {"max_completion_tokens": 6, "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "Rain"},
        ]}},
    ]  # fmt: skip
    plan = read_trace(write(tmp_path, rows, "log.jsonl"))
    assert [(t.session, t.turn, t.at, t.max_tokens) for t in plan.turns] == [
        ("s0", 1, 0.0, 5),
        ("s1", 1, 1.0, len(COUNT('[{"id": "1"}]'))),
        ("s1", 2, None, 6),
    ]
    assert [m.role for m in plan.turns[0].messages] == ["system", "user"]
    assert plan.turns[0].messages[1].tokens == len(COUNT("Hi"))
    assert [m.role for m in plan.turns[2].messages] == ["user", "assistant", "user"]


def test_aiperfs_sessions_add_their_texts(tmp_path):
    """Delays are milliseconds; answers stand between the texts."""
    rows = [
        {"session_id": "a", "turns": [
            {"text": "hi there", "output_length": 50, "timestamp": 2000},
            {"text": "more", "delay": 1500},
        ]},
        {"session_id": "b", "turns": [{"texts": ["x", "y"], "timestamp": 3000}]},
    ]  # fmt: skip
    plan = read_trace(write(tmp_path, rows, "a.jsonl"), TraceOptions(answer_tokens=7))
    hi, more = len(COUNT("hi there")), len(COUNT("more"))
    assert sent(plan)[:2] == [
        ("sa", 1, 0.0, 0, hi, 50),
        ("sb", 1, 1.0, 0, len(COUNT("x y")), 7),
    ]
    assert sent(plan)[2] == ("sa", 2, None, 1.5, hi + 50 + more, 7)


def dag(*turns, name="a"):
    """A line of a graph: a session of turns with more keys each."""
    said = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 4}
    return {"session_id": name, "turns": [{**said, **turn} for turn in turns]}


def test_aiperfs_graph_forks_spawns_and_joins(tmp_path):
    """A fork begins with what was said, a spawn afresh, and a join waits."""
    rows = [
        dag({"forks": ["b"], "spawns": [{"children": ["c"], "join_at": 2}]}, {}, {"delay": 500}),
        dag({}, name="b"),
        dag({}, {}, name="c"),
    ]
    plan = read_trace(write(tmp_path, rows, "dag.jsonl"))
    turns = {(t.session, t.turn): t for t in plan.turns}
    start = turns["a", 1]
    assert turns["b", 1].after == turns["c", 1].after == (start.index,)
    assert turns["b", 1].messages[0] == start.messages[0]
    assert turns["b", 1].messages[1].segments == (Segment(start.answer_key, 4),)
    assert len(turns["c", 1].messages) == 1
    assert turns["a", 2].after == ()
    assert turns["a", 3].after == (turns["c", 2].index,)
    assert turns["a", 3].think == 0.5


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([dag({"forks": ["z"]})], "dag.jsonl:1: expected a session 'z', got none"),
        ([dag({"forks": ["b"]}), dag({"forks": ["a"]}, name="b")], "no other starts, got none"),
        ([dag({"forks": ["b", "b"]}), dag({}, name="b")], "'b' to be started once, got twice"),
        ([dag({"forks": []}), dag({})], "dag.jsonl:2: session_id: expected once, got 'a' twice"),
        (
            [dag({"spawns": [{"children": ["b"], "join_at": 0}]}, {}), dag({}, name="b")],
            r"turns\[0\].spawns: expected join_at in 1…1, got 0",
        ),
        ([dag({"forks": [], "messages": []})], r"turns\[0\].messages: expected a text, got none"),
    ],
)
def test_a_graph_that_cannot_be_is_an_input_error(tmp_path, rows, says):
    """With the line of the session."""
    with pytest.raises(InputError, match=says):
        read_trace(write(tmp_path, rows, "dag.jsonl"))


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,1,m,100,20,120,x\n6,1,1,m,150,30,180,x\n7,2,1,m,9,0,9,x\n8,,1,m,9,3,12,x\n"
)


def test_azures_log_says_nothing_of_what_is_shared(tmp_path):
    """So nothing is, and a note says so."""
    plan = read_trace(write(tmp_path, AZURE, "azure.csv"))
    assert [(t.content_tokens, t.max_tokens) for t in plan.turns] == [(374, 44), (396, 109)]
    assert plan.turns[1].at == pytest.approx(4.314579, abs=1e-5)
    assert ceiling(plan, None, 16).hit_rate == 0
    assert "every prompt is one of its own" in plan.notes[0]


@pytest.mark.parametrize(
    ("semantics", "lengths", "shared"),
    [(None, [100, 150, 9], 0), ("cumulative", [100, 150, 9], 100), ("delta", [100, 270, 9], 100)],
)
def test_burst_gpts_sessions_continue_if_asked_to(tmp_path, semantics, lengths, shared):
    """Failed requests are left out; a prompt repeats its session, or adds to it."""
    plan = read_trace(write(tmp_path, BURST, "b.csv"), TraceOptions(semantics=semantics))
    assert [t.content_tokens for t in plan.turns] == lengths
    assert ceiling(plan, None, 1).cached_tokens[1] == shared
    assert any("left out" in note for note in plan.notes)


FILES = [
    ("plan", '{"kvbench": "plan"}'),
    ("mooncake", json.dumps(fakes_workload.ROWS[0])),
    ("bailian", '{"chat_id": 1, "parent_chat_id": -1, "hash_ids": []}'),
    ("weka", json.dumps(WEKA)),
    ("tracelab", CSV),
    ("sharegpt", json.dumps(SHARE_GPT)),
    ("messages", '{"messages": []}'),
    ("aiperf", '{"session_id": "a", "turns": []}'),
    ("aiperf-dag", json.dumps(dag({"forks": ["b"]}))),
    ("azure", AZURE),
    ("burstgpt", BURST),
    ("inference-perf", "data: {type: shared_prefix}"),
    ("production-stack", "python multi-round-qa.py --num-users 3"),
]


@pytest.mark.parametrize(("kind", "content"), FILES, ids=[kind for kind, _ in FILES])
def test_a_format_is_recognised_by_how_it_begins(tmp_path, kind, content):
    """And the plan says what it was taken for."""
    assert guess_format(write(tmp_path, content, "file")) == kind


def test_what_is_not_recognised_is_an_input_error(tmp_path):
    """The hint lists the formats; settings of other tools are sent to `import`."""
    with pytest.raises(InputError, match="expected a trace of a known format") as caught:
        read_trace(write(tmp_path, "hello"))
    assert "mooncake, bailian, weka" in caught.value.hint
    with pytest.raises(InputError, match="expected a trace, got an empty file"):
        read_trace(write(tmp_path, ""))
    with pytest.raises(InputError, match="which becomes a workload") as caught:
        read_trace(write(tmp_path, "--num-users 3"))
    assert "kvbench import" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ('[{"conversations": [{"from": 3}]}]', "a.json", r"a.json:1: conversations\[0\].from: exp"),
        ('[\n{"conversations": []},\n{"conversations": 1}]', "a.json", r"a.json:3: conversations:"),
        ('[\n{"conversations": []},\n{"conversations": ', "a.json", r"a.json:3: not JSON: "),
        ("session_id,round_idx,prefix_len\n", "a.csv", r"a.csv:1: expected a column 'input_len'"),
        (CSV.replace("576", "x"), "a.csv", r"a.csv:3: prefix_len: expected a number of at least 0"),
        (CSV.replace("0,0,512", "0,0,0"), "a.csv", r"a.csv:2: input_len: expected at least 1"),
        (AZURE.replace("374", "?"), "a.csv", r"a.csv:2: ContextTokens: expected a number"),
        (AZURE[:40], "a.csv", r"a.csv: expected at least one row, got none"),
        ('{"messages": [{"role": "user"}]}', "a.jsonl", r"a.jsonl:1: messages: expected at least"),
        ('{"turns": [{"delay": 3}]}', "a.jsonl", r"a.jsonl:1: turns: expected a text, got none"),
        (
            json.dumps(WEKA).replace("[1, 2]", "[1]"),
            "a.json",
            r"a.json: t1: requests\[0\].hash_ids",
        ),
        (json.dumps(WEKA).replace('"in": 130, ', ""), "a.json", r"requests\[0\].in: missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, content, name, says):
    """File, line and key, in every format."""
    with pytest.raises(InputError, match=says):
        read_trace(write(tmp_path, content, name))


def test_a_compressed_trace_is_read_as_it_is(tmp_path):
    """By its content, not its name; a broken one is an input error."""
    path = tmp_path / "trace.jsonl.gz"
    packed = gzip.compress("\n".join(map(json.dumps, fakes_workload.ROWS)).encode())
    path.write_bytes(packed)
    plan = read_trace(path)
    assert (plan.name, len(plan.turns)) == ("trace", 3)
    path.write_bytes(packed[:-12])
    with pytest.raises(InputError, match="cannot be decompressed"):
        read_trace(path)


@pytest.mark.parametrize("array", [False, True], ids=["lines", "one array"])
def test_a_large_file_needs_the_memory_of_what_is_taken_from_it(tmp_path, array):
    """Sixty megabytes of which one conversation is wanted, and then all but none fits."""
    item = json.dumps({"conversations": [{"from": "human", "value": "word " * 2000}]})
    path = tmp_path / "big.json"
    with path.open("w") as file:
        file.write("[" if array else "")
        file.write((",\n" if array else "\n").join([item] * 6000))
        file.write("]" if array else "\n")
    assert path.stat().st_size > 60_000_000
    tracemalloc.start()
    plan = read_trace(path, limit=3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.turns) == 3
    assert peak < 20_000_000
