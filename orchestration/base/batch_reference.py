"""Defines the name by which a run knows its batch. It contains no rows and no secrets. The sensor creates it, the run reads it, and the
sensor finds it again in the run's tags.

A reference is passed as run config (what the run merges), as run tags (how the sensor finds the runs of a batch), and as the run key
(Dagster's daemon starts one run per key). (ledger, batch, first end, delivery) identifies one delivery permanently. It does not contain
the batch's end, which is fixed when the run takes the batch. A batch that is handed out again after a rollback has another delivery
number, so Dagster, which also remembers the keys of failed runs, starts it. A run of a ledger that was lost does not settle batches of the
ledger that replaced it. If an older ledger is restored, it gives the same numbers again. A run that succeeded before then settles a batch
only if it ends where its own one was staged first, and so has only changes that the run merged."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.cdc_engine.contracts import OutstandingBatch

# There is a tag for each query of Dagster's storage; the rest of a batch's name is in the run's config. This tag is for
# the queue, which has one run per destination (dagster.yaml), and for people who filter runs by it.
DESTINATION_TAG = "sluice/destination"
BATCH_TAG = "sluice/batch"  # With this tag a tick finds the runs of a batch in one indexed query.
# With the value DRAIN, ticks know that the run also takes the batches after its own. The batch's tag then names its
# current batch.
RUNS_TAG = "sluice/runs"
DRAIN = "drain"

_DESTINATION = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LEDGER = re.compile(r"[0-9a-f]{12}")


class BatchReferenceError(ValueError):
    """A run's config or tags name no batch. The message describes the error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchReference:
    """The name of one delivery of a batch. `batch`: the batch's id in the ledger, the same for all its deliveries. `first_end`: the order
    key up to which the batch was first staged.

    Raises BatchReferenceError if a part is invalid.
    """

    destination: str
    ledger: str
    batch: int
    first_end: int
    delivery: int

    def __post_init__(self) -> None:
        for what, good in (
            ("destination", _DESTINATION.fullmatch(self.destination)),
            ("ledger", _LEDGER.fullmatch(self.ledger)),
            ("batch id", self.batch >= 0),
            ("first end", self.first_end >= 0),
            ("delivery", self.delivery >= 0),
        ):
            if not good:
                raise BatchReferenceError(f"{dataclasses.asdict(self)} does not name a batch: its {what} is not valid")

    @property
    def run_key(self) -> str:
        return f"{self.destination}:{self.ledger}:{self.batch}:{self.first_end}:{self.delivery}"

    def __str__(self) -> str:
        return f"delivery {self.delivery} of batch {self.batch} of {self.destination}"

    def to_tags(self) -> dict[str, str]:
        return {DESTINATION_TAG: self.destination, BATCH_TAG: self.run_key}

    def to_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BatchReference:
        """Parses the reference in a run's config, which `to_config` wrote."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(config) != names:
            raise BatchReferenceError(f"a batch is named by {sorted(names)}, not by {sorted(config)}")
        for name, value in config.items():
            wanted = int if name in {"batch", "first_end", "delivery"} else str
            if type(value) is not wanted:
                raise BatchReferenceError(f"{name} of a batch must be {wanted.__name__}, not {type(value).__name__}")
        return cls(**config)

    def names(self, batch: OutstandingBatch) -> bool:
        """Returns whether this reference names that delivery."""
        return self == BatchReference.of(self.destination, batch)

    @classmethod
    def of(cls, destination: str, batch: OutstandingBatch) -> BatchReference:
        """Returns the reference to a delivery of the engine."""
        return cls(
            destination=destination,
            ledger=batch.ledger_id,
            batch=batch.batch_id,
            first_end=batch.first_end,
            delivery=batch.delivery,
        )


def delivery_of(tags: Mapping[str, str]) -> str:
    """Returns the delivery that a run's tags name; empty if they name none."""
    return tags.get(BATCH_TAG, "").rpartition(":")[2]


def changes_of(tags: Mapping[str, str]) -> str:
    """Returns the part of a run's tags that is equal for all deliveries of the same changes; empty if the tags name no batch."""
    return tags.get(BATCH_TAG, "").rpartition(":")[0]


def check_tags(reference: BatchReference, tags: Mapping[str, str]) -> None:
    """Raises BatchReferenceError if a run's tags and its config name different batches: when the run ends, the wrong batch would be
    settled.

    A run without the tags is accepted: it settles nothing.
    """
    for tag, value in reference.to_tags().items():
        if tags.get(tag, value) != value:
            raise BatchReferenceError(
                f"the run's config names {reference}, but its tag {tag} is {tags[tag]!r}; nothing was written"
            )
