"""What it takes to play something in a test: fleets, and logs made of recordings and plans."""

from __future__ import annotations

import json

from recordings import load

from kvbench.engine.profiles import profile
from kvbench.engine.values import EngineConfig
from kvbench.oracle.play import Fleet
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.distributions import Constant
from kvbench.workload.render import Renderer
from kvbench.workload.spec import PoissonArrival, PrefixLevel, Sessions, Workload

SHIPPED = Tokenizer.load()
TIME = profile("llama-3.1-8b-h100").time

CHAT = Workload(
    name="chat",
    sessions=Sessions(
        count=12,
        turns=Constant(3),
        user_tokens=Constant(60),
        answer_tokens=Constant(30),
        think=Constant(0.2),
    ),
    arrival=PoissonArrival(20),
    prefixes=(PrefixLevel("tenant", 4, Constant(300)),),
)
"""A few conversations that share beginnings, quick enough to overlap."""


def fleet_of(*, pods=1, blocks=2000, size=16, policy="prefix_cost", seed=0, skip=True, **settings):
    """Return a fleet."""
    config = EngineConfig(blocks, size, max_model_len=1_000_000, **settings)
    return Fleet(pods, config, TIME, policy, seed, skip)


def fleet_like(recording, **settings):
    """Return a fleet with the settings of a recording."""
    return Fleet(config=recording.config, time=TIME, **{"pods": 1, **settings})


def write_recording(path, name):
    """Write a recording as a request log; return it."""
    recording = load(name)
    with path.open("w") as out:
        for number, row in enumerate(recording.rows.values()):
            request = {
                "i": number,
                "prompt_token_ids": row["prompt"],
                "max_tokens": row["max_tokens"],
                "cached_tokens": row["cached"],
            }
            if row.get("output"):
                request["output_token_ids"] = row["output"]
            out.write(json.dumps(request) + "\n")
            if row.get("reset_after"):
                out.write(json.dumps({"i": number, "event": "reset_prefix_cache"}) + "\n")
    return recording


def write_plan(path, plan):
    """Write a plan as a request log: the same prompts as token ids, answers that nobody shares."""
    renderer = Renderer(plan, SHIPPED)
    with path.open("w") as out:
        for turn in plan.turns:
            row = {
                "i": turn.index,
                "prompt_token_ids": list(renderer.prompt_ids(turn)),
                "max_tokens": turn.max_tokens,
                "session": turn.session,
            }
            out.write(json.dumps(row) + "\n")
    return renderer
