"""What an engine claims to serve, against what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.elastic.engine.settings import Dtype
from gyre.elastic.engine.weights.digest import digest_of_folder
from gyre.elastic.engines.face import Weights
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.vllm import Vllm
from gyre.proxy.errors import EngineError
from gyre.trainer.live.claims import require_served
from tests.elastic.models import folder


class Claims(Vllm):
    """One that says what it is told to say."""

    def __init__(self, version: str, digest: str | None) -> None:
        super().__init__("engine-0", EngineOptions(model="policy"), "http://127.0.0.1:1")
        self._told = Weights(version, digest)

    def weights(self) -> Weights:
        return self._told


def test_the_digest_of_the_folder_is_what_counts() -> None:
    true = digest_of_folder(folder(0), Dtype.FP32)
    require_served([Claims("3", true), Claims("3", None)], folder(0), "3", "fp32")
    with pytest.raises(EngineError, match="`engine-0` serves other weights than those of") as caught:
        require_served([Claims("3", true)], folder(1), "3", "fp32")
    assert true in caught.value.hint


def test_the_name_of_the_version_counts() -> None:
    with pytest.raises(EngineError, match="serves version `2`, not `3`"):
        require_served([Claims("2", None)], Path("nowhere"), "3", "fp32")
