"""Makes the function that stages the batches of a destination, for the module that hands the batches out (`ports.Stager`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.contracts import Batch, OutstandingBatch, Staged
from sluice.cdc_engine.ports import Stager
from sluice.cdc_engine.staging.batches import FOLDER
from sluice.cdc_engine.staging.rules import StagingRules
from sluice.cdc_engine.staging.staging import stage

PROCESS_BYTES = 4
RulesFor = Callable[[OutstandingBatch], StagingRules]


def make_stager(destination: str, directory: Path, rules_for: RulesFor) -> Stager:
    """Returns the function that stages a batch of the destination. `directory` is the folder of the destination. `rules_for` returns the
    rules for a batch.

    The ledger gets a batch only after the batch is staged. So after a takeover, two processes may stage batches with the same end and
    delivery number. Each process adds a random text of its own to the names of its directories, so that it never replaces files of the
    other process.
    """
    process = secrets.token_hex(PROCESS_BYTES)

    def stager(batch: Batch, record: OutstandingBatch, more: Callable[[Batch], Batch]) -> Staged:
        staged = stage(
            batch,
            destination,
            record.delivery,
            directory / FOLDER,
            rules_for(record),
            ledger_id=record.ledger_id,
            process=process,
            more=more,
        )
        return Staged(
            path=staged.path,
            rows=staged.manifest.rows,
            size_bytes=staged.manifest.bytes,
            tables=tuple(table.name for table in staged.manifest.tables),
            first_commit_time_us=staged.manifest.first_commit_time_us,
            stopped=staged.stopped,
        )

    return stager
