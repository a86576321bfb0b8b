"""What a target says about itself, and how it is asked."""

import asyncio

import fakes_target
import pytest

from kvbench.errors import TargetError
from kvbench.stack.target import look_at


def looked(status, page=b"{}"):
    """Look at a server that answers all with this."""

    async def case():
        script = lambda _asked: fakes_target.plain(status, page)  # noqa: E731 - one line
        async with fakes_target.ScriptedTarget(script) as server:
            return await asyncio.to_thread(look_at, server.url)

    return asyncio.run(case())


@pytest.mark.parametrize("status", [401, 403])
def test_a_target_that_wants_a_key_is_not_taken_for_no_server_of_models(status):
    """The hint names the variable that a key is taken from."""
    with pytest.raises(TargetError, match=f"answered {status}: it wants an API key") as caught:
        looked(status)
    assert caught.value.hint == "put the key into the variable OPENAI_API_KEY"


@pytest.mark.parametrize(("status", "page"), [(404, b"{}"), (200, b"<html>"), (200, b"[]")])
def test_what_lists_no_models_is_no_server_of_models(status, page):
    """Whatever it answers."""
    with pytest.raises(TargetError, match="does not list models"):
        looked(status, page)
