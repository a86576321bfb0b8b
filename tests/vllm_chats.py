"""What a real vLLM made of chats, and what we make of them."""

import json
from pathlib import Path

import tokenizers

from kvbench.router.model_tokens import ModelTokens
from kvbench.router.tokens import PromptTokens
from kvbench.text.agreement import PROBE_CALLS, PROBE_PARTS, PROBE_TOOLS
from kvbench.text.chat_template import ChatTemplate
from kvbench.text.prefix_store import PrefixStore
from kvbench.text.tokenizer import SHIPPED, Tokenizer

RECORDED = Path(__file__).parent / "router" / "recorded" / "chats.jsonl.gz"
CHAT = "/v1/chat/completions"


def probes():
    """Return what a pod is asked when it is met."""
    parts = {"model": "m", "messages": list(PROBE_PARTS)}
    calls = {"model": "m", "messages": list(PROBE_CALLS), "tools": list(PROBE_TOOLS)}
    return [(CHAT, parts), (CHAT, calls)]


def model_of(template):
    """Return the shipped tokenizer with another template, as the tokens of the model "m"."""
    config = json.loads((SHIPPED / "tokenizer_config.json").read_text())
    special = {name: text for name, text in config.items() if name.endswith("_token")}
    tokenizer = Tokenizer(
        tokenizers.Tokenizer.from_file(str(SHIPPED / "tokenizer.json")),
        path=SHIPPED,
        template=ChatTemplate(template, where="template", special_tokens=special),
    )
    tokens = PromptTokens()
    tokens.models["m"] = ModelTokens("m", tokenizer, PrefixStore(tokenizer))
    return tokens


def ours(tokens, path, body, theirs):
    """Return our ids of a body, None if it is not laid out; of a probe, learn from theirs."""
    data = json.dumps(body).encode()
    if (path, body) in probes() and isinstance(theirs, list):
        tokens.models["m"].met(data, theirs)
    parsed = tokens.parse(path, data)
    reading = None if parsed is None else tokens.lay_out(parsed)
    return None if reading is None else tuple(reading._tokens(reading.encode()).ids)
