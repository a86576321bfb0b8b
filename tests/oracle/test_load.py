"""Workload, trace or log: told apart by what is in the file, and read with all its options."""

import pytest
from fakes_workload import CHAT, ROWS, write_trace

from kvbench.errors import InputError
from kvbench.oracle.load import Reading, kind_of, load_script

LOG = [
    '{"prompt_token_ids": [5, 6, 7, 8, 9], "max_tokens": 4, "output_token_ids": [1, 2, 3, 4]}',
    '{"event": "reset_prefix_cache"}',
    '{"prompt_token_ids": [5, 6, 7, 8, 9, 1, 2, 3, 4, 5], "max_tokens": 4}',
    '{"prompt_token_ids": [5, 6, 7, 8, 9, 1, 2, 3, 4, 5], "max_tokens": 4}',
]


def test_a_trace_becomes_requests_at_their_times(tmp_path):
    """With its ceiling at any block size, and the line of each row."""
    path = write_trace(tmp_path, ROWS[0], "", *ROWS[1:])
    script = load_script(path, Reading(512, speed=2.0))
    assert [request.prompt_tokens for request in script.requests] == [1100, 1024, 600]
    assert [request.ceiling_tokens for request in script.requests] == [0, 512, 512]
    assert [request.at for request in script.requests] == [0, 0.25, 1.50025]
    assert [script.where(i) for i in range(3)] == [f"{path}:{line}" for line in (1, 3, 4)]
    assert [r.ceiling_tokens for r in load_script(path, Reading(16)).requests] == [0, 1008, 512]
    assert len(load_script(path, Reading(512, limit=2)).requests) == 2


def test_a_workload_becomes_its_plan_with_the_chat_template_around_it(tmp_path):
    """Later turns wait for those before them."""
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT)
    script = load_script(path, Reading(16))
    first = script.requests[0]
    plain = script.timed, script.name, script.where(3)
    assert plain == (True, "chat", f"{path}: turn 3")
    assert first.prompt_tokens > 64 + 16
    waiting = [request for request in script.requests if request.at is None]
    assert waiting
    assert all(
        script.requests[before].session == request.session
        for request in waiting
        for before in request.after
    )
    assert load_script(path, Reading(16, seed=9)).requests[0].prompt_tokens != 0


def test_a_log_has_the_ceiling_of_its_tokens_answers_and_resets(tmp_path):
    """An answer's last token is never computed; a reset empties the endless cache too."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([LOG[0], LOG[2], *LOG]))
    script = load_script(path, Reading(2))
    # [5 6 7 8 9 1 2 3]: prompt and answer but for its last token, in full blocks of two.
    assert [request.ceiling_tokens for request in script.requests] == [0, 8, 4, 0, 8]
    assert [request.reset_before for request in script.requests] == [False] * 3 + [True, False]
    assert not script.timed
    alone = load_script(path, Reading(2, prefill_only=True))
    assert [request.ceiling_tokens for request in alone.requests] == [0, 4, 4, 0, 8]
    assert {request.max_tokens for request in alone.requests} == {1}


def test_answers_that_a_log_does_not_know_are_tokens_that_nobody_has(tmp_path):
    """Each of them is another, beyond every token id that a log may have."""
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(LOG))
    prompts = [request.prompt for request in load_script(path, Reading(2)).requests]
    assert [prompts[0].next_token(i) for i in range(4)] == [1, 2, 3, 4]
    unknown = [prompt.next_token(i) for prompt in prompts[1:] for i in range(4)]
    assert len(set(unknown)) == 8
    assert all(2**31 <= token < 2**32 for token in unknown)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"foo": 1}', "expected a trace of a known format"),
        ("\n\nhello there", "expected a trace of a known format"),
        ("", "got an empty file"),
        (b"\xff\x00\xfe", "expected a trace of a known format"),
    ],
)
def test_a_file_that_is_none_of_the_three_is_refused(tmp_path, content, said):
    """With what would have been one."""
    path = tmp_path / "some.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        load_script(path, Reading(16))
    assert said in error.value.message
    assert "prompt_token_ids" in error.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """Whatever it would have been."""
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read"):
        kind_of(tmp_path / "none.jsonl")
