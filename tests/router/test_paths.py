"""Which paths are passed on."""

from __future__ import annotations

import pytest

from kvbench.router.paths import passed_on


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/audio/transcriptions", "/v2/rerank", "/score", "/tokenize", "/version",
     "/v1/models/sleep", "/inference/v1/generate"],
)  # fmt: skip
def test_what_a_client_may_ask_is_passed_on(path):
    """Known to us or not."""
    assert passed_on(path)


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/sleep", "//sleep", "/wake_up", "/collective_rpc", "/faults", "/faults/x",
     "/restart", "/x/../sleep", "/fault_tolerance/apply", "/inference/v1/abort_requests"],
)  # fmt: skip
def test_what_controls_one_engine_is_not(path):
    """However it is written."""
    assert not passed_on(path)
