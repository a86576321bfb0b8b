"""Record the KV events of a real vLLM, frame by frame, and the requests that caused them.

    python scripts/record_events.py URL OUT.jsonl.gz --events ENDPOINT --replay ENDPOINT

The pod must have just been started, in dev mode, with `--num-gpu-blocks-override 30
--max-model-len 640 --block-size 32`, so that there are evictions. The file has one JSON object per
line, frames in hexadecimal:

- `request`: a prompt, its salt, the tokens that were generated; or `reset`;
- `published`: a message as a SUB socket got it, behind the request after which it was seen;
- `replayed`: a message as a DEALER got it that asked from number `start` on, the end included.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import urllib.request
from pathlib import Path

import zmq

REQUESTS = 18
RESET_BEFORE = 9
BLOCK = 32


def scenario(seed: int) -> list[dict[str, object]]:
    """Return requests: four families of prompts, two of them salted, some with long answers."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    families = [[rng.randrange(4, 500) for _ in range(12 * BLOCK)] for _ in range(3)]
    asked: list[dict[str, object]] = []
    for number in range(REQUESTS):
        if number == RESET_BEFORE:
            asked.append({"reset": True})
        family = families[rng.randrange(3)]
        tail = [rng.randrange(4, 500) for _ in range(rng.randrange(1, 6 * BLOCK))]
        asked.append(
            {
                "prompt": family[: rng.randrange(1, len(family))] + tail,
                "max_tokens": rng.choice((1, 2, 40)),
                "salt": rng.choice((None, None, "s")),
            }
        )
    return asked


def post(url: str, body: dict[str, object]) -> bytes:
    """Return the body of the answer."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - what we were given
        content: bytes = answer.read()
    return content


def send(url: str, asked: dict[str, object]) -> dict[str, object]:
    """Send one request of the scenario; return it with what was generated."""
    if "reset" in asked:
        post(f"{url}/reset_prefix_cache", {})
        return {"reset": True}
    body = {"prompt": asked["prompt"], "max_tokens": asked["max_tokens"], "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    if asked["salt"]:
        body["cache_salt"] = asked["salt"]
    choice = json.loads(post(f"{url}/v1/completions", body))["choices"][0]
    return {"request": asked | {"output": choice["token_ids"]}}


def heard(socket: zmq.Socket[bytes], wait_ms: int) -> list[list[str]]:
    """Return what comes until nothing has come for so long."""
    messages = []
    while socket.poll(wait_ms):
        messages.append([frame.hex() for frame in socket.recv_multipart()])
    return messages


def main() -> None:
    """Send the scenario and write down what was said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", required=True)
    parser.add_argument("--replay", required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    context = zmq.Context()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.connect(arguments.events)
    subscriber.subscribe(b"")
    heard(subscriber, 1000)  # until the subscription has arrived
    rows: list[dict[str, object]] = []
    for asked in scenario(arguments.seed):
        rows.append(send(arguments.url, asked))
        rows += [{"published": frames} for frames in heard(subscriber, 300)]
    dealer.connect(arguments.replay)
    for start in (0, 5):
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        rows += [{"replayed": frames, "start": start} for frames in heard(dealer, 1000)]
    context.destroy(linger=0)
    with gzip.open(arguments.out, "wt") as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


if __name__ == "__main__":
    main()
