"""What a model of transformers says of an answer, with its own cache and attention and none of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gyre.elastic.engine.request import Span

Weights = Mapping[str, Tensor]


def weights_of(model: PreTrainedModel) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


class Replay:
    """One network that takes the weights of any version."""

    def __init__(self, network: PreTrainedModel, versions: Mapping[str, Weights]) -> None:
        self._network = network
        self._versions = versions
        self._loaded = ""

    @torch.inference_mode()
    def kept(self, ids: Sequence[int], spans: Sequence[Span]) -> list[float]:
        """Log-probability of each of `ids` after the first, where the weights change between `spans`.

        The keys and values stay: each span goes on with those that the ones before it left.
        """
        cache = DynamicCache(config=self._network.config)
        rows = []
        for span in spans:
            self._load(span.version)
            part = torch.tensor([ids[span.start : span.end]])
            places = torch.arange(span.start, span.end)[None]
            rows.append(self._network(part, position_ids=places, cache=cache).logits[0])
        return _chosen(torch.cat(rows), ids)

    @torch.inference_mode()
    def fresh(self, ids: Sequence[int], version: str) -> list[float]:
        """The same by one forward pass with the weights of one version."""
        self._load(version)
        return _chosen(self._network(torch.tensor([list(ids)]), use_cache=False).logits[0], ids)

    def _load(self, version: str) -> None:
        if version != self._loaded:
            for name, parameter in self._network.named_parameters():
                parameter.copy_(self._versions[version][name])
            self._loaded = version


def _chosen(logits_NV: Tensor, ids: Sequence[int]) -> list[float]:
    """The row of a token tells of the next one; the last row, if there is one too many, of none."""
    logprobs_NV = logits_NV.double().log_softmax(-1)
    chosen: list[float] = logprobs_NV[range(len(ids) - 1), list(ids[1:])].tolist()
    return chosen
