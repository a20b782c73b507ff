"""Telling a request's listener: the server's code, and whatever goes wrong in it must not end the engine."""

from __future__ import annotations

import logging

from gyre.elastic.engine.compute.sequence import Sequence
from gyre.elastic.engine.request import Finish, Started, Token

log = logging.getLogger(__name__)


def tell_started(sequence: Sequence, version: str, digest: str) -> None:
    wanted = sequence.request.prompt_logprobs is not None
    started = Started(
        cached_tokens=sequence.cached_tokens,
        version=version,
        digest=digest,
        prompt_logprobs=tuple(sequence.prompt_logprobs) if wanted else None,
    )
    sequence.told = True
    try:
        sequence.listener.started(started)
    except Exception:  # see above
        _failed(sequence)


def tell_token(sequence: Sequence, token: Token) -> bool:
    """True: the output ends with it."""
    try:
        return sequence.listener.token(token)
    except Exception:  # see above
        _failed(sequence)
        return True


def tell_finished(sequence: Sequence, finish: Finish) -> None:
    try:
        sequence.listener.finished(finish)
    except Exception:  # see above
        _failed(sequence)


def _failed(sequence: Sequence) -> None:
    log.exception("request %s: its listener failed", sequence.request.request_id)
