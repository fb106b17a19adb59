"""Defines the name by which a run knows its batch. It holds no rows and no secrets. The sensor creates it, the run reads it, and the
sensor finds it again in run tags.

A reference is passed as run config (what the run merges), as run tags (how the sensor finds the runs of a batch), and as the run key
(Dagster's daemon starts one run per key). (ledger, end, delivery) identifies one delivery permanently. A batch that is handed out again
after a rollback has another delivery number, so Dagster, which also remembers the keys of failed runs, starts it. A run of a ledger that
was lost does not settle batches of the ledger that replaced it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.position import file_number, order_key

if TYPE_CHECKING:
    from sluice.cdc_engine.contracts import OutstandingBatch

# A tag per question that somebody asks Dagster; the rest of a batch's name is in the run's config.
# The queue, which has one run per destination (dagster.yaml), and people, who filter runs by it.
DESTINATION_TAG = "sluice/destination"
BATCH_TAG = "sluice/batch"  # the ticks: the runs of a batch, by one indexed query
# The ticks: which runs take further batches; a value below. The tag of the batch names the one that a run is at. DRAIN: the run takes
# those that follow its own too. BATCH: its own alone, with what arrived while it started.
RUNS_TAG = "sluice/runs"
DRAIN, BATCH = "drain", "batch"

_DESTINATION = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LEDGER = re.compile(r"[0-9a-f]{12}")
_END = re.compile(r"(?P<file>[^/\\:\s]{1,200}\.\d{1,9}):(?P<offset>\d{1,10})")
_PATH = re.compile(r"staging/[A-Za-z0-9._-]{1,200}")


class BatchReferenceError(ValueError):
    """A run config or tags do not name a batch; the message describes the error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchReference:
    """The name of one delivery of one batch. `path`: its staged directory, relative to the destination's directory.

    Raises BatchReferenceError if a part is invalid.
    """

    destination: str
    ledger: str
    epoch: int
    end_file: str
    end_offset: int
    delivery: int
    path: str

    def __post_init__(self) -> None:
        for what, good in (
            ("destination", _DESTINATION.fullmatch(self.destination)),
            ("ledger", _LEDGER.fullmatch(self.ledger)),
            ("end position", _END.fullmatch(self.end)),
            ("delivery", self.delivery >= 0),
            ("path", _PATH.fullmatch(self.path) and ".." not in self.path),
        ):
            if not good:
                raise BatchReferenceError(f"{dataclasses.asdict(self)} does not name a batch: its {what} is not valid")
        try:
            order_key(self.epoch, file_number(self.end_file), self.end_offset)
        except Exception as error:
            raise BatchReferenceError(f"{dataclasses.asdict(self)} does not name a batch: {error}") from error

    @property
    def end(self) -> str:
        """Returns the end position as `file:offset`."""
        return f"{self.end_file}:{self.end_offset}"

    @property
    def end_order_key(self) -> int:
        return order_key(self.epoch, file_number(self.end_file), self.end_offset)

    @property
    def run_key(self) -> str:
        return f"{self.destination}:{self.ledger}:{self.epoch}:{self.end}:{self.delivery}"

    def __str__(self) -> str:
        return f"delivery {self.delivery} up to {self.end}@{self.epoch} of {self.destination}"

    def to_tags(self) -> dict[str, str]:
        return {DESTINATION_TAG: self.destination, BATCH_TAG: self.run_key}

    def to_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BatchReference:
        """Returns the reference in a run config; the inverse of `to_config`."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(config) != names:
            raise BatchReferenceError(f"a batch is named by {sorted(names)}, not by {sorted(config)}")
        for name, value in config.items():
            wanted = int if name in {"epoch", "end_offset", "delivery"} else str
            if type(value) is not wanted:
                raise BatchReferenceError(f"{name} of a batch must be {wanted.__name__}, not {type(value).__name__}")
        return cls(**config)

    def names(self, batch: OutstandingBatch) -> bool:
        """Returns whether this is the reference of that delivery."""
        return self == BatchReference.of(self.destination, batch)

    @classmethod
    def of(cls, destination: str, batch: OutstandingBatch) -> BatchReference:
        """Returns the reference of a delivery that the engine made."""
        return cls(
            destination=destination,
            ledger=batch.ledger_id,
            epoch=batch.end.epoch,
            end_file=batch.end.file,
            end_offset=batch.end.offset,
            delivery=batch.delivery,
            path=batch.path,
        )


def delivery_of(tags: Mapping[str, str]) -> str:
    """Returns the delivery that a run's tags name; empty if they name none."""
    return tags.get(BATCH_TAG, "").rpartition(":")[2]


def changes_of(tags: Mapping[str, str]) -> str:
    """Returns what the deliveries of the same changes have in common in a run's tags; empty if they name no batch."""
    return tags.get(BATCH_TAG, "").rpartition(":")[0]


def check_tags(reference: BatchReference, tags: Mapping[str, str]) -> None:
    """Raises BatchReferenceError if a run's tags name another batch than its config, because the end of the run would settle the wrong
    batch.

    A run without the tags is accepted: it settles nothing.
    """
    for tag, value in reference.to_tags().items():
        if tags.get(tag, value) != value:
            raise BatchReferenceError(
                f"the run's config names {reference}, but its tag {tag} is {tags[tag]!r}; nothing was written"
            )
