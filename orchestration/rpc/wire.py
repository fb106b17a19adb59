"""Defines the frame of requests and answers, and converts errors to and from JSON, by code. Client and server use it. Pure."""

from __future__ import annotations

import json
from typing import Any

from sluice.cdc_engine import errors
from sluice.cdc_engine.errors import SluiceError

SERVICE, CALL = "sluice.Engine", "Call"
FORM = 6  # The version of requests and answers. Other versions are refused with a message.

Record = dict[str, Any]


class EngineRefusedError(SluiceError):
    """An error of the engine that no code here handles, with the engine's message and `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# The errors that a tick or a run distinguishes, or that an operator knows by name. Each has only its message as
# argument.
_DISTINGUISHED: dict[str, type[SluiceError]] = {
    kind.code: kind
    for kind in (
        errors.BatchNotFirstError,
        errors.BatchNotFoundError,
        errors.ConfigurationError,
        errors.EngineStartingError,
        errors.EngineStoppedError,
        errors.LeaseLostError,
        errors.MetaError,
        errors.NotStartedError,
        errors.SourceConnectionError,
        errors.StagingError,
    )
}


def error_to_json(error: SluiceError) -> Record:
    return {"code": error.code, "message": str(error)}


def error_of(record: Record) -> Exception:
    """Returns the error that a record of `wire` describes."""
    code, message = str(record["code"]), str(record["message"])
    kind = _DISTINGUISHED.get(code)
    return kind(message) if kind else EngineRefusedError(code, message)


def to_bytes(record: Record) -> bytes:
    return json.dumps(record).encode()
