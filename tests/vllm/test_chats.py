"""Chats with tools, contents in parts and thoughts: our tokens of them are the real vLLM's."""

import gzip
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import agentic
import pytest
from tool_templates import ALL
from vllm_chats import RECORDED, model_of, ours, probes

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
