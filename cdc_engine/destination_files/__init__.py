"""The files of a destination that others than its engine use: its ledger and lease, to read; the run lock and what runs keep of the
tables, which runs write. Starts nothing.

Used by `orchestration` inside runs (is my batch the head of the line?) and by the console.
"""

from cdc_engine.contracts import Holder, OutstandingBatch, StoppedTable
from cdc_engine.destination_files.installation import installation_id, known_installation_id
from cdc_engine.destination_files.lake_tables import LakeTables
from cdc_engine.destination_files.ledger_reader import head_of_line, lease_holder, ledger_text, read_ledger
from cdc_engine.destination_files.run_lock import (
    RunLockTimeoutError,
    drain_lock,
    drain_lock_held,
    run_lock,
    run_lock_fence,
    run_lock_held,
    run_lock_wanted,
)
from cdc_engine.destination_files.table_locks import TableLock
from cdc_engine.meta.ledger import Ledger

__all__ = [
    "Holder",
    "LakeTables",
    "Ledger",
    "OutstandingBatch",
    "RunLockTimeoutError",
    "StoppedTable",
    "TableLock",
    "drain_lock",
    "drain_lock_held",
    "head_of_line",
    "installation_id",
    "known_installation_id",
    "lease_holder",
    "ledger_text",
    "read_ledger",
    "run_lock",
    "run_lock_fence",
    "run_lock_held",
    "run_lock_wanted",
]
