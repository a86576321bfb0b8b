"""What requests cost, in instructions of Python: the same on every machine, whatever else it does.

Compiled modules (`scripts/compiled.py`) have none. `make bench` has seconds.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from router.fakes import CHAT, Client, House, chat, chunk, run

import kvbench

PACKAGE = str(Path(kvbench.__file__).parent)
USAGE = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}'


@contextmanager
def counted():
    """Count the instructions that kvbench executes, in a list of one number."""
    count = [0]

    def one(_frame, event, _argument):
        count[0] += event == "opcode"
        return one

    def trace(frame, _event, _argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return one

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


async def answers(call):
    """Answer in full."""
    await call.answer(USAGE)


async def least(client: Client, bodies) -> int:
    """Return what the cheapest of these takes; others may meet the router's own work."""
    costs = []
    for body in bodies:
        with counted() as count:
            reply = await client.ask("POST", CHAT, body)
        assert reply.status == 200
        costs.append(count[0])
    return min(costs[3:])


@pytest.mark.parametrize(("policy", "most"), [("prefix_cost", 4000), ("round_robin", 3500)])
def test_a_small_request_takes_so_many_instructions_and_no_more(policy, most):
    """Four pods; what is around them is known."""

    async def case():
        async with House(*[answers] * 4, policy=policy) as house:
            client = await Client.to(house.url)
            cost = await least(client, [chat("hi")] * 12)
            client.close()
            return cost

    assert run(case) < most


def test_a_long_conversation_costs_little_more_than_a_word():
    """Its next turn: 100 kB, all but the last message known."""

    async def case():
        async with House(*[answers] * 4, policy="prefix_cost") as house:
            client = await Client.to(house.url)
            word = await least(client, [chat("hi")] * 12)
            said = [f"{number} " * 100 for number in range(300)]
            turns = [chat(*said[: 280 + number]) for number in range(12)]
            turn = await least(client, turns)
            client.close()
            return word, turn

    word, turn = run(case)

    assert turn < word + 3000


def test_a_chunk_of_a_stream_takes_eighty_instructions():
    """Beside the first and the last."""
    chunks = 200

    async def streams(call):
        await call.begin_stream(b"data: 0\n\n")
        await call.gone()

    async def case():
        async with House(streams, policy="prefix_cost") as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            await client.head()
            await client.chunk()
            call = house.pods[0].calls[0]
            costs = []
            for number in range(chunks):
                with counted() as count:
                    await call.send(chunk(b"data: %03d\n\n" % number))
                    await client.chunk()
                costs.append(count[0])
            client.vanish()
            return sorted(costs)[chunks // 2]

    assert run(case) < 80
