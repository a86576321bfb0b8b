"""What a pod says before it is calibrated, what is assumed otherwise, and who is refused."""

import asyncio
import json

import fakes_target
import pytest
from fakes_target import plain

from kvbench.engine.experiment import DECODED
from kvbench.errors import InputError, TargetError
from kvbench.stack.facts import BUDGET, look

CARD = {"id": "tiny", "object": "model", "max_model_len": 8192}
CACHE = (
    'vllm:cache_config_info{{block_size="32",num_gpu_blocks="3767",kv_cache_size_tokens="120544",'
    'kv_cache_memory_bytes="123456789",num_gpu_blocks_override="{override}"}} 1.0\n'
    "vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n"
)


def looked(budget=None, **pages):
    """Look at a pod with these pages besides its models."""
    pages = {"/v1/models": json.dumps({"data": [CARD]}), **pages}

    def script(request):
        path = request.head.split()[1].decode().partition("?")[0]
        return plain(200, pages[path].encode()) if path in pages else plain(404, b"{}")

    async def case():
        """Look, while the pod is there."""
        async with fakes_target.ScriptedTarget(script) as target:
            return await asyncio.to_thread(look, target.url, None, 16, budget)

    return asyncio.run(case())


def test_a_pod_in_dev_mode_says_everything():
    """Its window, blocks, cache and budget; bytes per token where bytes and blocks match."""
    info = {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": 2048}}}

    facts = looked(**{
        "/metrics": CACHE.format(override="None", running=0),
        "/server_info": json.dumps(info),
    })  # fmt: skip

    assert (facts.model, facts.budget, facts.budget_known) == ("tiny", 2048, True)
    assert facts.bounds.block_size == 32
    assert facts.bounds.kv_tokens == 120_544
    assert facts.bounds.longest == 8192 - DECODED
    assert facts.kv_bytes_per_token == 1024


def test_what_a_pod_does_not_say_is_assumed():
    """No metrics, no information: blocks of 16, the usual budget, and it is said."""
    facts = looked()

    assert (facts.budget, facts.budget_known) == (BUDGET, False)
    assert facts.bounds.block_size == 16
    assert facts.bounds.kv_tokens == 8192
    assert facts.kv_bytes_per_token == 0


def test_a_budget_that_is_given_needs_not_be_said():
    """The flag wins."""
    assert (looked(budget=4096).budget, looked(budget=4096).budget_known) == (4096, True)


def test_bytes_and_blocks_that_do_not_belong_together_say_nothing_about_a_token():
    """With an override of the blocks the bytes are not theirs."""
    metrics = CACHE.format(override="3767", running=0)

    assert looked(**{"/metrics": metrics}).kv_bytes_per_token == 0


@pytest.mark.parametrize("info", ["[]", "{}", "no", '{"vllm_config": 3}'])
def test_information_of_another_shape_is_none(info):
    """Other servers have other pages there."""
    assert not looked(**{"/server_info": info}).budget_known


def test_a_busy_pod_is_refused():
    """Other requests would be in every number."""
    with pytest.raises(TargetError, match="is busy with 2 requests"):
        looked(**{"/metrics": CACHE.format(override="None", running=2)})


def test_a_router_is_refused_with_its_pods():
    """A calibration is of one of them."""
    pods = {"pods": [{"name": "a", "url": "http://127.0.0.1:9"}]}

    with pytest.raises(InputError, match="is a router") as caught:
        looked(**{"/pods": json.dumps(pods)})

    assert caught.value.hint == "calibrate one of its pods: http://127.0.0.1:9"
