"""The model that is trained, cut where trees need it: hidden states of all tokens, logits of a few.

Shapes: B rows, S tokens of a row, D hidden, M rows of hidden states, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gyre.elastic.engine.models import folder, smollm2
from gyre.elastic.engine.models.check import ELSEWHERE, is_finite
from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.models.tiny import TINY, make_tiny
from gyre.elastic.packaged import SMOLLM2
from gyre.proxy.errors import EngineError
from gyre.trainer.errors import RefusedError, TrainError
from gyre.trainer.passes.kinds import LayerKinds, layer_kinds
from gyre.trainer.settings import Device, Dtype

_COMPUTE = {Dtype.FP32: torch.float32, Dtype.BF16: torch.bfloat16}
_SAME_LOGITS = 1e-4
"""Largest relative difference (L2) between the model's logits and its head on its hidden states."""


class Policy:
    """A causal language model of transformers with fp32 weights.

    The model stays in eval mode also where gradients are computed: with dropout, pi and pi_old would be
    different random functions, and their ratio noise. (Gradients do not need train mode.)
    """

    def __init__(self, model: PreTrainedModel, *, dtype: Dtype = Dtype.FP32) -> None:
        """RefusedError where logits are more than the output embedding of the last hidden state."""
        self.model = model.eval()
        self.compute = _COMPUTE[dtype]
        self.kinds: LayerKinds = layer_kinds(model)
        self.stock: str = model.config._attn_implementation
        """Name of the attention that the model came with."""
        self.body: Any = _body(model)
        """What is called for hidden states. Sharded training puts its own around it."""
        self.tried: dict[str, RefusedError | None] = {}
        """Passes that were compared with the model, and what is wrong with them. It is remembered, as the
        weights may be spread over processes since, and the passes be asked for once more."""
        self._embed: Any = model.get_output_embeddings()
        self._check_head()

    @property
    def device(self) -> torch.device:
        place: torch.device = self.model.device
        return place

    def hidden(
        self, input_ids_BS: torch.Tensor, position_ids_BS: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """(B, S, D): after the last norm. `kwargs` go to the model, and from there to its attention."""
        with self._autocast():
            out = self.body(
                input_ids=input_ids_BS, position_ids=position_ids_BS, **{"use_cache": False, **kwargs}
            )
        hidden_BSD: torch.Tensor = out.last_hidden_state
        return hidden_BSD

    def head(self, hidden_MD: torch.Tensor) -> torch.Tensor:
        """(M, V), in the dtype that is computed in."""
        with self._autocast():
            logits_MV: torch.Tensor = self._embed(hidden_MD)
        return logits_MV

    @property
    def vocab_size(self) -> int:
        """Ids that the model has rows for; its tokenizer may know fewer."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @contextmanager
    def precise(self) -> Iterator[None]:
        """Computed in fp32 for the length of the block, to compare numbers."""
        compute, self.compute = self.compute, torch.float32
        try:
            yield
        finally:
            self.compute = compute

    def head_rows(self, budget: int) -> int:
        """Rows whose fp32 logits take at most `budget` bytes, or those of the head's weights."""
        rows, width = self._embed.weight.shape
        return int(max(width, budget // (4 * rows)))

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Another registered attention function for the length of the block."""
        self.model.set_attn_implementation(name)
        try:
            yield
        finally:
            self.model.set_attn_implementation(self.stock)

    def _autocast(self) -> AbstractContextManager[Any]:
        # Entered per call: the copies of weights that it keeps are those of one forward pass, with or
        # without gradient.
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Caps, scales and further heads are not looked for by name: the numbers show them."""
        kind = self.model.config.model_type
        if self._embed is None:
            raise RefusedError(f"`{kind}` models have no output embedding")
        ids_1S = (torch.arange(8, device=self.device) * 7919 + 7)[None] % self.vocab_size
        out: Any = self.model(input_ids=ids_1S, use_cache=False)
        wanted_SV = out.logits[0].float()
        with self.precise():
            given_SV = self.head(self.hidden(ids_1S)[0]).float()
        if wanted_SV.shape != given_SV.shape:
            raise RefusedError(f"`{kind}` models have {wanted_SV.shape[-1]} logits of another kind")
        difference = float((given_SV - wanted_SV).norm() / wanted_SV.norm())
        if not difference <= _SAME_LOGITS:  # also when it is no number
            raise RefusedError(
                f"`{kind}` models cap or scale their logits (relative difference {difference:.2g}), which"
                " gyre does not do"
            )


def _body(model: PreTrainedModel) -> Any:
    body = model.get_decoder()
    if body is model:
        raise RefusedError(f"`{model.config.model_type}` models have no part that gives hidden states alone")
    return body


def load_policy(
    model: str | Path,
    *,
    dtype: Dtype = Dtype.FP32,
    device: Device = Device.AUTO,
    progress: Callable[[str], None] = lambda _: None,
) -> Policy:
    """`tiny`, `smollm2` or a Hugging Face folder, with fp32 weights in memory of their own.

    Raises:
        TrainError: no such folder, no causal language model, or files that are damaged.
        RefusedError: a model whose log-probabilities gyre would get wrong.
    """
    place = device_of(device)
    try:
        network = _find(model, progress)
    except EngineError as error:
        raise TrainError(error.message, "" if error.hint == ELSEWHERE else error.hint) from error
    values = network.config.to_dict()
    if values.get("output_router_logits"):
        network.config.output_router_logits = False  # the auxiliary loss is not in ours
    _settle(network, place)
    for key, parameter in network.named_parameters():
        if not is_finite(parameter):
            raise TrainError(f"the weights of `{model}` are damaged: `{key}` has values that are not finite")
    return Policy(network, dtype=dtype)


def _find(model: str | Path, progress: Callable[[str], None]) -> PreTrainedModel:
    if model == TINY:
        return make_tiny().model
    path = smollm2.rebuilt(progress) if model == SMOLLM2 else Path(model).expanduser()
    if path.suffix == ".gguf":
        raise TrainError(f"`{path}` cannot be trained", "give the Hugging Face folder that it was made from")
    folder.require(path)
    with quietly():
        config = folder.read_config(path)
        if config.get_text_config().to_dict().get("quantization_config"):
            raise TrainError(f"`{path}` has quantized weights, which cannot be trained")
        folder.require_causal_lm(path, config)
        return folder.read_weights(path, config, torch.float32)


def device_of(device: Device) -> torch.device:
    """The one to compute on. TrainError: it is not there."""
    if device == Device.CUDA and not torch.cuda.is_available():
        raise TrainError("torch sees no `cuda` device here", '`device = "cpu"` runs anywhere')
    if device == Device.AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _settle(network: PreTrainedModel, device: torch.device) -> None:
    """Weights in memory of their own: a checkpoint may be written over the folder they came from."""
    try:
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data = tensor.data.clone()
        torch.nn.Module.to(network, device)
    except RuntimeError as error:  # out of memory, in torch's words
        raise TrainError(f"the weights do not fit into the memory of `{device}`: {error}") from error
