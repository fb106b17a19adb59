"""Defines `BatchReference`, by which a run names its batch. The sensor creates the reference and writes it to the run's config and tags. A
reference has no rows and no secrets.

A reference is used in three ways. The run config tells the run what to merge. The tags let the sensor find the runs of a batch. The run key
lets Dagster's daemon start only one run per delivery, because the daemon starts a run only for a key that no run had, not even a failed
one.

The fields identify one delivery permanently:

- The batch's end is not a field, because it is fixed only when the run takes the batch.
- After a rollback the batch gets another delivery number, and so a new run key.
- The ledger's id is a field, so that a run of a lost ledger never settles a batch of the ledger that replaced it.
- `first_end` is the order key at which the batch ended when it was staged first. It is a field, because a ledger that is restored from an
  older copy hands out the same batch and delivery numbers again. If an earlier successful run has the same numbers, a tick acks the batch
  only if `first_end` is equal too. An equal `first_end` proves that the run has merged all changes of the batch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.cdc_engine.contracts import OutstandingBatch

# The tag with the destination of a run. The run queue (dagster.yaml) lets only one run per destination execute at a time, and people filter
# runs by this tag. The run's config has all fields of the BatchReference. The tags repeat these fields, because Dagster's storage can be
# queried by tags, but not by config.
DESTINATION_TAG = "sluice/destination"
BATCH_TAG = "sluice/batch"  # By this tag a tick finds the runs of a batch in one indexed query.
# A run with the value DRAIN takes further batches after its first one, and sets BATCH_TAG to its current batch.
RUNS_TAG = "sluice/runs"
DRAIN = "drain"
# The id of the destination's ledger, in the tags of runs that merge no batch: snapshots and maintenance. A job's name does not identify
# these runs, because other code locations may have jobs of the same names. A sensor or schedule recognizes its own runs by this tag, even
# after the code location was renamed.
LEDGER_TAG = "sluice/ledger"

_DESTINATION = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LEDGER = re.compile(r"[0-9a-f]{12}")


class BatchReferenceError(ValueError):
    """Raised if the config or the tags of a run name no batch, or name different batches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchReference:
    """Identifies one delivery of a batch. `batch` is the batch's id in the ledger, which is the same for all deliveries of the batch.
    `first_end` is the order key at which the batch ended when it was staged first. Raises BatchReferenceError if a field is invalid.
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
        """Parses a run's config that `to_config` wrote. Raises BatchReferenceError if a field is missing, unknown or of the wrong type."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(config) != names:
            raise BatchReferenceError(
                f"a reference to a batch must have the fields {sorted(names)}, and has {sorted(config)}: leave merge runs to the "
                "sensor, which sets these fields in the run's config"
            )
        for name, value in config.items():
            wanted = int if name in {"batch", "first_end", "delivery"} else str
            if type(value) is not wanted:
                raise BatchReferenceError(
                    f"{name} in a reference to a batch must be {wanted.__name__}, not {type(value).__name__}"
                )
        return cls(**config)

    def names(self, batch: OutstandingBatch) -> bool:
        """Returns whether `batch` is the delivery that this reference identifies."""
        return self == BatchReference.of(self.destination, batch)

    @classmethod
    def of(cls, destination: str, batch: OutstandingBatch) -> BatchReference:
        """Returns the reference to a delivery that the engine handed out."""
        return cls(
            destination=destination,
            ledger=batch.ledger_id,
            batch=batch.batch_id,
            first_end=batch.first_end,
            delivery=batch.delivery,
        )


def delivery_of(tags: Mapping[str, str]) -> str:
    """Returns the delivery number in a run's tags, or "" if the run has no batch tag."""
    return tags.get(BATCH_TAG, "").rpartition(":")[2]


def changes_of(tags: Mapping[str, str]) -> str:
    """Returns a run's batch tag without the delivery number, so that all deliveries of a batch have the same result. Returns "" if the
    run has no batch tag.
    """
    return tags.get(BATCH_TAG, "").rpartition(":")[0]


def ledger_of(tags: Mapping[str, str]) -> str:
    """Returns the id of the ledger that a run's tags name, or "" if they name none."""
    _, _, after = tags.get(BATCH_TAG, "").partition(":")
    return tags.get(LEDGER_TAG, "") or after.partition(":")[0]


def check_tags(reference: BatchReference, tags: Mapping[str, str]) -> None:
    """Raises BatchReferenceError if the tags and the config of a run name different batches, because the sensor would then settle the wrong
    batch when the run ends. Accepts a run without the tags: the sensor settles nothing for such a run.
    """
    for tag, value in reference.to_tags().items():
        if tags.get(tag, value) != value:
            raise BatchReferenceError(
                f"the run's config names {reference}, but its tag {tag} is {tags[tag]!r}; nothing was written: leave merge runs to the "
                "sensor, which sets config and tags"
            )
