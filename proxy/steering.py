"""Which routes steer an engine or its weights: they are for its owner, and agents get no further than here.

A call is its sender's own affair; a pause or other weights are felt by every client of the engine.
"""

from __future__ import annotations

import posixpath

_GYRE_AND_VLLM = """
    pause resume sleep wake_up abort_requests kv/export kv/import update_weights update_weight_version
    init_weight_transfer_engine start_weight_update finish_weight_update reset_prefix_cache reset_mm_cache
    reset_encoder_cache collective_rpc scale_elastic_ep server_info load_lora_adapter unload_lora_adapter
    start_profile stop_profile
"""
_SGLANG = """
    pause_generation continue_generation abort_request flush_cache slow_down release_memory_occupation
    resume_memory_occupation clear_hicache_storage_backend update_weights_from_disk
    update_weights_from_tensor update_weights_from_distributed update_weights_from_ipc
    init_weights_update_group destroy_weights_update_group init_weights_send_group_for_remote_instance
    send_weights_to_remote_instance load_lora_adapter_from_tensors set_internal_state configure_logging
    freeze_gc start_expert_distribution_record stop_expert_distribution_record
    dump_expert_distribution_record
"""
ALWAYS = frozenset((*_GYRE_AND_VLLM.split(), *_SGLANG.split()))
"""By any method: SGLang takes most of its own by GET too."""
UNLESS_READ = frozenset(
    # llama.cpp; `adapters` is vLLM's
    ("slots", "slots/*", "lora-adapters", "props", "models/load", "models/unload", "adapters", "adapters/*")
)
"""Reading them is harmless; `*` is one name."""
READS = ("GET", "HEAD")


def steers(method: str, path: str) -> bool:
    """Whether a request steers an engine. `path` is decoded, without query.

    Engines can serve their routes below a root path too, so what a path ends in decides; except below `/v1`,
    where hosted APIs have things of their own that can be paused. Engines differ in what they take for the
    same path: case, slashes and dots are read generously (and `$` of a pattern lets a line end pass).
    """
    parts = [part for part in posixpath.normpath(path.strip()).casefold().split("/") if part]
    tails = [parts[1:]] if parts[:1] == ["v1"] else [parts[-1:], parts[-2:]]
    routes = {"/".join(tail) for tail in tails} | {f"{tail[0]}/*" for tail in tails if len(tail) == 2}
    return bool(routes & ALWAYS or (method not in READS and routes & UNLESS_READ))
