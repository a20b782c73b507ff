"""Every error gyre raises on purpose.

GyreError
├── ConfigError(ValueError)         a setting is wrong; names the key
├── LogError(OSError)               the log folder cannot be used
│   ├── LogFormatError              written by a newer gyre, or no log at all
│   ├── CorruptLogError             a file in it is damaged; names the file
│   └── LogBusyError                another process holds what we need
├── RequestError(ValueError)        the client's request is wrong; carries an HTTP status
├── UpstreamError(ConnectionError)  the engine failed; names the backend
├── EngineError(RuntimeError)       an engine of ours cannot start
└── ScoreError(ValueError)          a score cannot be used; names file and line where it has them
"""

from __future__ import annotations


class GyreError(Exception):
    """Root of all errors that gyre raises on purpose.

    `hint` tells the user what to do about it; the command line prints it under the message.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ConfigError(GyreError, ValueError):
    """A setting is missing, unknown or has a value that cannot be used."""


class LogError(GyreError, OSError):
    """The log folder cannot be read or written."""

    def __str__(self) -> str:
        return self.message


class LogFormatError(LogError):
    """The folder holds a log of a newer format, or no log."""


class CorruptLogError(LogError):
    """A file of the log is damaged beyond what recovery may cut off."""


class LogBusyError(LogError):
    """Another process is sealing or writing what we need."""


class RequestError(GyreError, ValueError):
    """The client's request cannot be served; becomes an HTTP answer in the wire's own form."""

    def __init__(
        self, message: str, status: int = 400, code: str = "invalid_request", hint: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, int, str, str]]:
        return type(self), (self.message, self.status, self.code, self.hint)


class UpstreamError(GyreError, ConnectionError):
    """A backend could not be reached or broke off; `str()` names it."""

    def __str__(self) -> str:
        return self.message


class EngineError(GyreError, RuntimeError):
    """An engine that gyre starts itself cannot run."""


class ScoreError(GyreError, ValueError):
    """A score, or a file of scores, cannot be used."""
