"""Defines the frame of requests and answers, and converts errors to JSON and back. Client and server use this module."""

from __future__ import annotations

import json
from typing import Any

from sluice.cdc_engine import errors
from sluice.cdc_engine.errors import SluiceError

SERVICE, CALL = "sluice.Engine", "Call"
FORM = 7  # The version of requests and answers. A server refuses other versions with a message.

Record = dict[str, Any]


class EngineRefusedError(SluiceError):
    """Raised in a caller for any error of the engine that is not in `_DISTINGUISHED`. The exception has the message and the `code` of the
    engine's error.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# The caller gets these errors as their own class, because a tick or a run handles them separately, or operators know them by name. Each can
# be created from its message alone. The caller gets any other error as EngineRefusedError.
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
    """Returns the exception for a record that `error_to_json` wrote."""
    code, message = str(record["code"]), str(record["message"])
    kind = _DISTINGUISHED.get(code)
    return kind(message) if kind else EngineRefusedError(code, message)


def to_bytes(record: Record) -> bytes:
    return json.dumps(record).encode()
