"""Chats with tools, contents in parts and thoughts: our tokens of them are the real vLLM's."""

import gzip
import json
import os
import random
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import agentic
import pytest
from real_vllm import OFFSETS, free_port, wait_healthy
from tool_templates import ALL
from vllm_chats import RECORDED, model_of, ours, probes

from kvbench.stack.process import Child, kvbench_command
from kvbench.text.tokenizer import SHIPPED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def rendered(asked, folder):
    """Return what the real vLLM makes of `[template, path, body]`: ids, or why it refuses."""
    home = Path(os.environ["REAL_VLLM"]).parent
    for file in (SHIPPED / "tokenizer.json", SHIPPED / "tokenizer_config.json"):
        shutil.copy(file, folder)
    shutil.copy(home / "model" / "config.json", folder)
    done = subprocess.run(
        [home / "venv" / "bin" / "python", Path(__file__).parent / "chats_in_vllm.py", folder],
        input="".join(json.dumps(one) + "\n" for one in asked), text=True, capture_output=True,
        check=False, env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )  # fmt: skip
    told = [
        json.loads(line.removeprefix("told:"))
        for line in done.stdout.splitlines()
        if line.startswith("told:")
    ]
    assert len(told) == len(asked), done.stderr[-2000:]
    return told


def test_what_is_laid_out_has_the_tokens_of_the_real_engine(tmp_path):
    """Over five templates; what it refuses is not laid out. `RECORD_CHATS=1` writes it down."""
    rng = random.Random(os.environ.get("RECORDING_SEED", "chats"))
    asked = []
    for name, template in ALL.items():
        asked += [(name, template, path, body) for path, body in probes()]
        for path, make in agentic.PATHS.items():
            asked += [(name, template, path, make(rng)) for _ in range(60)]
    told = rendered([one[1:] for one in asked], tmp_path)
    if os.environ.get("RECORD_CHATS"):
        lines = [
            json.dumps([name, path, body, ids if isinstance(ids, list) else None])
            for (name, _, path, body), ids in zip(asked, told, strict=True)
        ]
        RECORDED.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    models = {name: model_of(template) for name, template in ALL.items()}
    exact = 0
    for (name, _, path, body), ids in zip(asked, told, strict=True):
        found = ours(models[name], path, body, ids)
        assert found in {None, tuple(ids) if isinstance(ids, list) else None}, (name, path, body)
        exact += found is not None
    assert exact > 0.7 * sum(isinstance(ids, list) for ids in told)


SYSTEM, TOOL, SCHEMA = "You may read files. " * 20, "Reads a file. " * 20, {"type": "object"}


def chat_turns(count):
    """Yield an agent's chats: in each turn a call more, and what was answered."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is there?"},
    ]
    function = {"name": "read", "description": TOOL, "parameters": SCHEMA}
    for turn in range(count):
        yield {"messages": messages, "tools": [{"type": "function", "function": function}]}
        called = {"name": "read", "arguments": f'{{"path": "/{turn}", "lines": [1, 2.50]}}'}
        call = {"id": f"call{turn:05}", "type": "function", "function": called}
        messages = [
            *messages,
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"{turn} " * 60},
        ]


def message_turns(count):
    """Yield the same in Anthropic's form."""
    messages = [{"role": "user", "content": "What is where?"}]
    tools = [{"name": "read", "description": TOOL, "input_schema": SCHEMA}]
    for turn in range(count):
        bill = {"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"}
        system = [bill, {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        yield {"messages": messages, "tools": tools, "system": system}
        call = {"type": "tool_use", "id": f"c{turn}", "name": "read", "input": {"path": f"/{turn}"}}
        answer = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": f"{turn} " * 60}
        messages = [
            *messages,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
            {"role": "user", "content": [answer, {"type": "text", "text": "go on"}]},
        ]


def response_turns(count):
    """Yield the same as responses."""
    items = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in (("developer", SYSTEM), ("user", "Where is what?"))
    ]
    tools = [{"type": "function", "name": "read", "description": TOOL, "parameters": SCHEMA}]
    for turn in range(count):
        yield {"input": items, "tools": tools, "instructions": "Be kind.", "store": False}
        thoughts = [{"type": "reasoning_text", "text": "hm"}]
        items = [
            *items,
            {"type": "reasoning", "summary": [], "content": thoughts},
            {"type": "function_call", "name": "read", "arguments": "{}", "call_id": f"c{turn}"},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": f"{turn} " * 60},
        ]


def ask(url, path, body):
    """Ask; return the predicted and the delivered cached tokens."""
    most = {agentic.RESPONSES: "max_output_tokens"}.get(path, "max_tokens")
    data = json.dumps(body | {"model": "tiny", most: 1}).encode()
    asked = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        usage = json.load(answer)["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        cached = details.get("cached_tokens", usage.get("cache_read_input_tokens", 0))
        return int(answer.headers["x-kvbench-predicted-tokens"]), cached


def get(url, path):
    """Return the body of a GET."""
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return answer.read().decode()


def test_an_agents_turns_are_foretold_on_a_real_pod(tmp_path):
    """In OpenAI's two forms and in Anthropic's, over a template that lays out tools."""
    serve, port = os.environ["REAL_VLLM"], free_port()
    shutil.copytree(Path(serve).parent / "model", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(ALL["tagged"])
    url, told = f"http://127.0.0.1:{port}", ("--tokenizer", str(tmp_path / "model"))
    parser = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    parser += ("--default-chat-template-kwargs", '{"enable_thinking": false}')
    events, replay = (f"tcp://127.0.0.1:{port + offset}" for offset in OFFSETS[1:])
    pod = f"{urlsplit(url).geturl()},events={events},replay={replay}"
    command = kvbench_command("router", "--port", "0", "--exit-with-parent", "--pod", pod, *told)
    with Child("pod", [serve, str(port), *told, *parser], tmp_path / "pod.log") as engine:
        wait_healthy(engine, url)
        with Child("router", command, tmp_path / "router.log") as child:
            router = child.wait_ready(60)
            while 'tokens_known{model="tiny"} 1.0' not in get(router, "/metrics"):
                time.sleep(0.1)
            found = []
            turns = {
                agentic.CHAT: chat_turns,
                agentic.MESSAGES: message_turns,
                agentic.RESPONSES: response_turns,
            }
            for path, bodies in turns.items():
                for body in bodies(4):
                    found.append(ask(router, path, body))
                    time.sleep(2.1)  # until nothing is promised
            decisions = json.loads(get(router, "/decisions"))
            decisions = decisions["decisions"] if isinstance(decisions, dict) else decisions
    assert all(predicted == cached for predicted, cached in found), found
    assert sum(cached > 150 for _, cached in found) >= 9, found
    assert [one["exact"] for one in decisions][:-1] == [True] * 11
    assert {one["cause"] for one in decisions} == {"none"}
