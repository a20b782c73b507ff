"""One line per problem on stderr, as text or as JSON; none per call.

For the processes of a running proxy, workers included. Bodies are never logged, only recorded.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Literal

LogFormat = Literal["text", "json"]
LOGGERS = ("gyre", "uvicorn.error", "asyncio")
"""Whose records are shown; the others are of libraries that say nothing of use here."""


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": os.getpid(),
        }
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown)


_NO_NEWS = ("ASGI callable returned without completing", "Unsupported upgrade", "No supported WebSocket")
"""What uvicorn says of a stream that ends as its engine cut it, and of WebSockets, which are refused."""


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NO_NEWS)


def install(form: LogFormat, level: int) -> None:
    """Show records of at least `level`, in place of any handler that was there before."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    handler.addFilter(_is_news)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level if name == "gyre" else max(level, logging.WARNING))
