"""Defines the trace of a batch, and the spans of a trace. The id of a trace is computed from the ledger's id and the delivery number, so
processes need not pass the id to each other.

  batch                  from taking the batch from the store until its ack or rollback; one trace per delivery
  ├── stage              from taking the batch from the store until its staged files are complete
  ├── append             staging of the changes that are appended to the batch when the run takes it
  ├── run                the work of a run on the delivery; one span per run
  │   └── merge TABLE
  └── ack · rollback     the write of the ledger
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

BATCH, STAGE, RUN, ACK, ROLLBACK, APPEND = "batch", "stage", "run", "ack", "rollback", "append"
Value = str | int | float | tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """The trace of one delivery of a batch."""

    ledger_id: str
    delivery: int

    @property
    def trace_id(self) -> int:
        """The id of the trace, 128 bits."""
        return _hashed(16, self.ledger_id, self.delivery)

    def span_id(self, path: tuple[str, ...]) -> int:
        """Returns the id of the span with this path, 64 bits."""
        return _hashed(8, self.ledger_id, self.delivery, *path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A step of a trace. `path` identifies the span in the tree of the trace: it has a key for each span from `batch` down to this span.
    Times are in ns since 1970. `error` says why the step failed, or is empty.
    """

    path: tuple[str, ...]
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Span:
        """Parses the JSON of `to_json`. Raises KeyError, TypeError or ValueError if the record has another structure."""
        return cls(
            path=tuple(str(each) for each in record["path"]),
            name=str(record["name"]),
            start_ns=int(record["start_ns"]),
            end_ns=int(record["end_ns"]),
            attributes={str(key): _value(value) for key, value in record["attributes"].items()},
            error=str(record["error"]),
        )


def _value(value: Any) -> Value:
    return tuple(str(each) for each in value) if isinstance(value, list | tuple) else value


def _hashed(size: int, *words: object) -> int:
    """Returns an id of `size` bytes that is computed from the words. The id is never 0, because 0 is not valid in OpenTelemetry."""
    text = "\0".join(str(word) for word in words).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest()) or 1
