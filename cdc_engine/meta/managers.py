"""Opens a destination's ledger in the record store that conf/ names. Called by `instance`, `acts` and `destination_files`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.meta import canal_cursor
from sluice.cdc_engine.meta.cursor_copy import CursorCopyingMeta
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.stored_ledger import LEDGER, StoredLedger, nobody_else, read_stored_ledger
from sluice.cdc_engine.ports import Lease
from sluice.cdc_engine.records.location import Location, as_location, record_store
from sluice.extras import Extra, require

# The interval, in seconds, at which the cursor is copied to ZooKeeper with meta.kind `period_mixed`. The value is Canal's default.
PERIOD_SECONDS = 1.0


def open_meta(location: Location, lease: Lease) -> MetaManager:
    """Opens a destination's ledger for writing. The caller holds `lease`. Raises LeaseLostError if a later holder of the lease has written
    the ledger, MetaError if the record store does not answer or the ledger is invalid, and ConfigurationError if kazoo is needed and not
    installed.
    """
    location = as_location(location)
    nodes = canal_nodes(*location.source)
    also = nodes if location.kind == "zookeeper" else nobody_else
    stored = StoredLedger(record_store(location), location.destination, token=lease.token, fence=lease.check, also=also)
    if location.kind not in {"mixed", "period_mixed"}:
        return stored
    require(Extra.ZOOKEEPER, ConfigurationError)
    from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore  # noqa: PLC0415  most destinations do without kazoo

    zookeeper = ZooKeeperRecordStore(location.zookeeper, location.destination, location.session_seconds)
    period = PERIOD_SECONDS if location.kind == "period_mixed" else 0.0
    return CursorCopyingMeta(stored, lambda ledger: zookeeper.publish(nodes(ledger)), period)


def read_ledger(location: Location) -> Ledger:
    """Returns the ledger of a destination, or an empty `Ledger` if none is stored. Takes no lock and writes nothing. Raises MetaError if
    the record store does not answer or the ledger is invalid.
    """
    location = as_location(location)
    return read_stored_ledger(record_store(location), location.destination)


def ledger_text(location: Location) -> str:
    """Returns the stored text of a ledger, or an empty text if there is none. The text is not parsed, so that an invalid ledger can be
    shown too. Raises MetaError if the record store does not answer.
    """
    return record_store(location).get(LEDGER) or ""


def canal_nodes(host: str, port: int) -> Callable[[Ledger], Mapping[str, str]]:
    """Returns a function that converts a ledger to the values that Canal's tools read in ZooKeeper: the cursor and the filter of each
    client. These values are in a mapping whose keys are paths under the destination's node. `host` and `port` are the address of the
    source.
    """

    def nodes(ledger: Ledger) -> Mapping[str, str]:
        found = {f"{each.client_id}/filter": each.filter for each in ledger.clients}
        if ledger.cursor is not None:
            cursor = canal_cursor.to_text(ledger.cursor, host, port)
            found |= {f"{each.client_id}/cursor": cursor for each in ledger.clients}
        return found

    return nodes
