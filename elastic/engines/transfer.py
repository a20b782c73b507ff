"""How weights come into vLLM: from a folder that it reads itself, or through the memory of GPUs.

For the latter vLLM must be started with `--weight-transfer-config '{"backend": "nccl"}'` (or `ipc`, with
VLLM_ALLOW_INSECURE_SERIALIZATION=1, on the trainer's own GPU), and its package must be installed here too:
the sending side is vLLM's own, so that both speak the same protocol.
"""

from __future__ import annotations

import base64
import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from gyre.elastic.engines.connection import Connection
from gyre.proxy.errors import EngineError

Backend = Literal["nccl", "ipc"]
_INIT_S = 120.0
_LOOK_S = 120.0
INSIDE = Path(__file__).with_name("inside")
"""To be in the PYTHONPATH of vLLM."""
EXTENSION = "gyre_vllm.Reload"


class Transfer(Protocol):
    def begin(self, connection: Connection) -> None:
        """An engine is new. Raises EngineError where it cannot be given weights."""
        ...

    def send(self, connection: Connection, folder: Path, timeout_s: float) -> None:
        """Bring the weights of `folder` into a paused engine. Raises EngineError."""
        ...

    def end(self) -> None:
        """What connects the two is gone, or no longer needed."""
        ...


class FromDisk:
    """The engine sees the folder under the same path."""

    def __init__(self) -> None:
        self._method = "reload_weights"

    def begin(self, connection: Connection) -> None:
        """With our extension in its workers a reload is whole; without it, on a CPU it is not."""
        try:
            connection.ask("POST", "/collective_rpc", {"method": "gyre_can_reload"})
        except EngineError:
            if _on_cpu(connection):
                raise EngineError(
                    f"vLLM at `{connection.url}` computes on a CPU, where it does not reload all weights: "
                    "an output layer that shares those of the embedding keeps the old ones",
                    f"start it with `--worker-extension-cls {EXTENSION}` and PYTHONPATH={INSIDE}",
                ) from None
            self._method = "reload_weights"
        else:
            self._method = "gyre_reload"

    def send(self, connection: Connection, folder: Path, timeout_s: float) -> None:
        body = {"method": self._method, "kwargs": {"weights_path": str(folder.resolve())}}
        connection.ask("POST", "/collective_rpc", body, timeout_s=timeout_s)

    def end(self) -> None:
        pass


def _on_cpu(connection: Connection) -> bool:
    """It looks around in its whole environment to answer."""
    told = connection.ask("GET", "/server_info?config_format=json", timeout_s=_LOOK_S)
    device = ((told.get("vllm_config") or {}).get("device_config") or {}).get("device_type")
    return device == "cpu"


class FromMemory:
    """Through NCCL or CUDA's IPC. The engine need not see the folder."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sender: Any = None
        self._source = Source()

    def begin(self, connection: Connection) -> None:
        self.end()
        if find_spec("vllm") is None:
            raise EngineError(
                f"weights go through {self._backend} with vLLM's own sender, which is not installed here",
                '`pip install vllm`, or `engine.transfer = "disk"`',
            )

    def send(self, connection: Connection, folder: Path, timeout_s: float) -> None:
        self._source.folder = folder
        try:
            if self._sender is None:
                self._sender = self._connected(connection, timeout_s)
            self._sender.send_weights()
        except RuntimeError as problem:
            if isinstance(problem, EngineError):
                raise
            raise EngineError(f"weights do not go through {self._backend}: {problem}") from problem

    def end(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None

    def _connected(self, connection: Connection, timeout_s: float) -> Any:
        """vLLM's sender, connected with the workers of the engine."""
        client = Client(connection, timeout_s)
        if self._backend == "ipc":
            module: Any = import_module("vllm.distributed.weight_transfer.ipc_engine")
            about = module.IPCTrainerInitInfo(rank=0, packed=True)
            return module.IPCTrainerWeightTransferEngine.trainer_init(
                about, client=client, source=self._source
            )
        module = import_module("vllm.distributed.weight_transfer.nccl_engine")
        workers = int(connection.ask("GET", "/get_world_size")["world_size"])
        host, port = meeting_place(connection.url)
        about = module.NCCLTrainerInitInfo(
            rank=0, master_address=host, master_port=port, world_size=1 + workers
        )
        return module.NCCLTrainerWeightTransferEngine.trainer_init(about, client=client, source=self._source)


@dataclass(frozen=True, slots=True)
class Meta:
    """Of one tensor, as vLLM's sender asks for it."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


class Source:
    """The tensors of a folder in their order on disk, one file after the other, on the first GPU."""

    folder = Path()

    def metadata(self) -> list[Meta]:
        return [Meta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors("cpu")]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._tensors("cuda")

    def _tensors(self, device: str) -> Iterator[tuple[str, Any]]:
        from safetensors import safe_open

        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt", device=device) as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name)


class Client:
    """What vLLM's sender asks of an engine, over HTTP."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        body = {"init_info": init_info}
        self._connection.ask("POST", "/init_weight_transfer_engine", body, timeout_s=_INIT_S)

    def start_weight_update(self) -> None:
        self._connection.ask("POST", "/start_weight_update", timeout_s=self._timeout_s)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Handles of CUDA's IPC are no JSON: vLLM takes them pickled where it is allowed to."""
        info = dict(update_info)
        handles = info.pop("ipc_handles", None)
        if handles is not None:
            info["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles)).decode()
        body = {"update_info": {key: value for key, value in info.items() if value is not None}}
        self._connection.ask("POST", "/update_weights", body, timeout_s=self._timeout_s)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        body = None if weight_version is None else {"weight_version": weight_version}
        self._connection.ask("POST", "/finish_weight_update", body, timeout_s=self._timeout_s)


def meeting_place(url: str) -> tuple[str, int]:
    """The address of this machine that an engine at `url` can reach, and a free port there."""
    engine = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((engine.hostname or "127.0.0.1", engine.port or 80))
        host = str(way.getsockname()[0])
    with socket.create_server((host, 0)) as free:
        return host, int(free.getsockname()[1])
