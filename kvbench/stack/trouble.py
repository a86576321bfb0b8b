"""What to do about a vLLM that did not start, as its log or that of its download says.

Pure. vLLM ends with a traceback of a hundred lines, and the line that says why is seldom the last.
"""

from __future__ import annotations

import re

_KNOWN = (
    (
        r"valid model identifier|RepositoryNotFoundError|(Model|Repository) (\S+ )?not found",
        "there is no such model: check its name, and HF_TOKEN if it is private",
    ),
    (
        r"gated repo|GatedRepoError|requires approval|401 Client Error|403 Client Error",
        "the model wants its licence accepted: do so on its page, and set HF_TOKEN",
    ),
    (
        r"[Rr]evision not found|not a valid git identifier",
        "the model has no such revision: check its name",
    ),
    (
        r"couldn't connect to|Name or service not known|Temporary failure in name resolution",
        "the hub cannot be reached: serve a local directory, or let this machine reach it",
    ),
    (
        r"larger than the available KV cache memory|larger than the maximum number of tokens",
        "the KV cache does not hold one request: lower the max model length",
    ),
    (
        r"No available memory for the cache blocks",
        "the weights leave no memory for a KV cache: raise the GPU memory utilisation",
    ),
    (
        r"[Ff]ree memory on device|CUDA out of memory|OutOfMemoryError|out of memory",
        "too little free GPU memory: end what else uses it (nvidia-smi), or serve a smaller model",
    ),
    (
        r"No CUDA GPUs are available|Failed to infer device type|no NVIDIA driver|libcuda\.so",
        "vLLM sees no GPU: is the driver installed, and in a container NVIDIA's toolkit?",
    ),
    (
        r"cannot be started: No such file",
        "pip install 'kvbench[vllm]', or say with --vllm-command what starts one",
    ),
    (
        r"(?i)address already in use",
        "the port is taken: end what listens there, or choose another",
    ),
    (
        r"unrecognized arguments: (?P<what>[^\n]+)",
        "this vLLM is older than 0.24, or its flags have changed",
    ),
    (
        r"No common block size",
        "the device takes no blocks of this size: --block-size 32 on a CPU, 16 on a GPU",
    ),
)


def known_trouble(log: str) -> str | None:
    """Return what to do about what stands in the log of a vLLM; None if it tells nothing known."""
    for pattern, advice in _KNOWN:
        if re.search(pattern, log):
            return advice
    return None
