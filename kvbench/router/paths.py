"""Which paths are whose.

Prompts go where the policy says. The router answers some paths itself. All others are passed to a
pod, but those that control one engine: a request that could reach any pod must not put one to
sleep, and a router that is open to clients must not hand them its pods' controls.
"""

from __future__ import annotations

PROMPTS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/invocations",
    "/inference/v1/generate",
})  # fmt: skip
MODELS = "/v1/models"
RESET = "/reset_prefix_cache"

_CONTROLS = frozenset({
    "abort_requests", "collective_rpc", "fault_tolerance", "faults", "finish_weight_update",
    "init_weight_transfer_engine", "is_paused", "is_scaling_elastic_ep", "is_sleeping",
    "kv_event_sources", "pause", "release_kv_cache_memory", "reset_encoder_cache",
    "reset_mm_cache", "restart", "resume", "scale_elastic_ep", "server_info", "shutdown",
    "shutdown_weight_transfer_engine", "sleep", "start_draft_weight_update", "start_profile",
    "start_weight_update", "stop_profile", "update_weight_version", "update_weights", "wake_up",
    "weight_checker", "weight_info",
})  # fmt: skip


def passed_on(path: str) -> bool:
    """Return whether a path that the router does not answer itself is passed to a pod."""
    first, *rest = path.lstrip("/").split("/")
    controls = {first} if first == "v1" else {first, *rest}
    return bool(first) and _CONTROLS.isdisjoint(controls) and ".." not in rest
