"""Gives runs and the console access to the files and records of a destination: the ledger, the lease, the run lock, and the record of the
lake tables.
"""

from sluice.cdc_engine.contracts import Holder, OutstandingBatch, StoppedTable
from sluice.cdc_engine.destination_files.installation import installation_id, known_installation_id
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.destination_files.ledger_reader import head_of_line, lease_holder, ledger_text, read_ledger
from sluice.cdc_engine.destination_files.run_lock import (
    RunLockTimeoutError,
    drain_lock,
    drain_lock_held,
    run_lock,
    run_lock_fence,
    run_lock_held,
    run_lock_wanted,
)
from sluice.cdc_engine.destination_files.table_locks import StoredTableLock
from sluice.cdc_engine.meta.ledger import Ledger

__all__ = [
    "Holder",
    "LakeTables",
    "Ledger",
    "OutstandingBatch",
    "RunLockTimeoutError",
    "StoppedTable",
    "StoredTableLock",
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
