"""Rows, and what they add up to, for those who watch a run."""

import itertools

from kvbench.load.live import Live
from kvbench.load.tally import Tally
from kvbench.records.schema import TurnRecord

INDICES = itertools.count()


def row(**fields):
    """Return the row of a turn: sent 1 ms late, first token after 100 ms, 3 tokens 20 ms apart."""
    given = {
        "index": next(INDICES), "session": "s", "turn": 1, "group": "g", "intended_s": 1.0,
        "sent_s": 1.001, "first_token_s": 1.101, "last_token_s": 1.141,
        "chunk_gaps_s": [0.02, 0.02], "planned_prompt_tokens": 80,
        "prompt_tokens": 100, "cached_tokens": 48,
        "ceiling_tokens": 64, "completion_tokens": 3, "max_tokens": 3, "pod": "a",
        "request_id": "r", **fields,
    }  # fmt: skip
    return TurnRecord(**given)


def tally(*rows):
    """Return the tally of rows."""
    made = Tally()
    for one in rows:
        made.add(one)
    return made


def live(*tallies):
    """Return a run that has heard of these tallies, each from a worker of its own."""
    made = Live()
    made.begin("run-1", "chat", "http://pod")
    made.state = "running"
    for number, one in enumerate(tallies):
        made.hear(str(number), one)
    return made
