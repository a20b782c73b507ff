"""A conversation's keys and values out of one engine and into another; called between two steps."""

from __future__ import annotations

import uuid
from collections.abc import Sequence as Seq

import numpy as np
import torch

from gyre.elastic.engine.compute.kv import SequenceKV
from gyre.elastic.engine.compute.sequence import Sequence
from gyre.elastic.engine.core import Core
from gyre.elastic.engine.moving.conversation import ConversationKV, KVIdentity, Progress, refusal
from gyre.elastic.engine.request import FinishReason, Span, spans_of
from gyre.elastic.engine.schedule.prefix import Ids
from gyre.proxy.errors import RequestError


def identity(core: Core) -> KVIdentity:
    shape = core.memory.shape
    return KVIdentity(
        digest=core.digest,
        layers=shape.layers,
        kv_heads=shape.heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        vocab_size=core.model.vocab_size,
        max_positions=core.limits.ctx,
    )


@torch.inference_mode()
def export_request(core: Core, request_id: str) -> ConversationKV:
    """Take a running request out with its KV; its listener hears `moved`.

    Raises:
        RequestError: 404, no such request; 409, nothing of it is computed yet: it stays.
    """
    sequence = core.roster.find(request_id)
    if sequence is None:
        raise RequestError(f"there is no request `{request_id}`", 404, "request_unknown")
    if not sequence.computed or sequence.kv is None:
        raise RequestError(f"nothing of `{request_id}` is computed yet", 409, "no_kv")
    ids = np.array(sequence.ids, np.int32)
    conversation = _conversation(core, ids, sequence.kv, sequence.kv.length, _progress(sequence))
    core.finish(sequence, FinishReason.MOVED)
    return conversation


@torch.inference_mode()
def export_ids(core: Core, ids: Seq[int]) -> ConversationKV:
    """A copy of what is kept of the longest prefix of `ids`.

    Raises:
        RequestError: 404, nothing is.
    """
    found = core.memory.store.find(ids)
    if found is None:
        raise RequestError("no keys and values of these tokens are kept", 404, "no_kv")
    entry, length = found
    return _conversation(core, entry.ids, entry.kv, length, None)


@torch.inference_mode()
def import_conversation(core: Core, conversation: ConversationKV) -> str:
    """Keep KV that another engine computed; returns the `kv_id` by which a request may name it.

    Whole of the current weights, it is also found by its tokens; with a part by older ones, only by name.

    Raises:
        RequestError: 409, it is of other weights or of another model; 413, it has no room.
    """
    refused = refusal(conversation, identity(core))
    if refused is not None:
        raise refused
    memory, tokens = core.memory, conversation.n_tokens
    if not memory.fits(tokens, core.running):
        raise RequestError("the engine has no room for these keys and values", 413, "kv_no_room")
    kv = SequenceKV(memory.shape, tokens)
    kv.data[:, :, :, :tokens] = conversation.kv.to(memory.shape.device)
    for span in conversation.spans:
        kv.advance(span.end - span.start, _name_here(core, conversation, span))
    kv_id = f"kv-{uuid.uuid4().hex[:16]}"
    memory.take_in(kv_id, conversation.ids.tolist(), kv, core.version)
    memory.shrink(core.running)
    return kv_id


def _name_here(core: Core, conversation: ConversationKV, span: Span) -> str:
    """This engine's name for a span's weights: the same weights may have had another name there."""
    digest = conversation.digests[span.version]
    if digest == core.digest:
        return core.version
    taken = core.digests.setdefault(span.version, digest) != digest
    name = f"{span.version}@{digest}" if taken else span.version
    core.digests[name] = digest
    return name


def _conversation(
    core: Core, ids: Ids, kv: SequenceKV, length: int, progress: Progress | None
) -> ConversationKV:
    spans = kv.spans(length)
    return ConversationKV(
        ids=ids[:length].astype(np.int64),
        kv=kv.data[:, :, :, :length].clone(memory_format=torch.contiguous_format),
        spans=spans,
        digests={span.version: core.digests[span.version] for span in spans},
        model=core.model.name,
        progress=progress,
    )


def _progress(sequence: Sequence) -> Progress | None:
    """None for a continuation: what came before it is not known here."""
    if sequence.request.output_ids:
        return None
    tokens = sequence.tokens
    return Progress(
        n_prompt=sequence.prompt_length,
        output_ids=tuple(token.id for token in tokens),
        logprobs=tuple(token.logprob for token in tokens),
        sampling_logprobs=tuple(token.sampling_logprob for token in tokens),
        output_spans=spans_of(token.version for token in tokens),
        sampling=sequence.request.sampling,
    )
