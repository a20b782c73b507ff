"""What sends weights through the memory of GPUs is vLLM's own: that it has the form which we use. No GPU."""

from __future__ import annotations

import subprocess

import pytest

from tests.vllm.install import environment, vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PROGRAM = """
import inspect
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine
nccl_engine.NCCLTrainerInitInfo(rank=0, master_address="127.0.0.1", master_port=1, world_size=2)
ipc_engine.IPCTrainerInitInfo(rank=0, packed=True)
for kind in (nccl_engine.NCCLTrainerWeightTransferEngine, ipc_engine.IPCTrainerWeightTransferEngine):
    for name in ("trainer_init", "send_weights", "shutdown"):
        print(name, *inspect.signature(getattr(kind, name)).parameters)
"""
FORM = "trainer_init init_info client source\nsend_weights self\nshutdown self\n"


def test_vllms_sender_is_called_as_it_wants_to_be() -> None:
    done = subprocess.run(
        [str(vllm()), "-c", PROGRAM], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(2 * FORM)
