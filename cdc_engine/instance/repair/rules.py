"""Decides what a repair may do, and where it begins."""

from __future__ import annotations

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.instance.backfill.plan import BinlogInterval
from sluice.cdc_engine.instance.backfill.reading import binlog_files
from sluice.cdc_engine.instance.backfill.rules import RAISED, Refusals, RequestedInterval, check_source
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position

REFUSALS: Refusals = (
    RAISED,
    (lambda table: table.stop, "it has stopped ({stop}): resume it first, or {instead}"),
    (lambda table: table.snapshot, "a snapshot of it is {snapshot}, which reads all its rows again: wait for its end"),
    (
        lambda table: not table.known,
        "its columns are not known where the lake is: the engine has read no change of it yet",
    ),
    (lambda table: not table.mirror, "it has no current-state table whose rows could be corrected; {instead}"),
    (lambda table: not table.key, "it has no key, so its rows cannot be distinguished; {instead}"),
    (lambda table: table.follows, "foreign keys change its rows without row events; {instead}"),
    (lambda table: table.statements, "statements changed it meanwhile ({shown}): start the repair again"),
    (lambda table: table.unread, "{unread}: {instead}"),
    (
        lambda table: table.partial,
        (
            "rows changed meanwhile by images that lack columns (binlog_row_image is not FULL): start the repair again when "
            "less is written, or {instead}"
        ),
    ),
    (lambda table: table.quarantined, "values that arrived meanwhile cannot be decoded: {instead}"),
)


def from_the_lake(config: DestinationConfig, ledger: Ledger, request: RequestedInterval) -> BinlogInterval:  # noqa: ARG001  as `work.Find`
    """Returns the interval that starts at the ledger's cursor: the lake has everything before it, and the server shows it. Raises
    ActRefusedError, SourceConnectionError.
    """
    files = binlog_files(config)
    facts = files.facts
    cursor = check_source(config.name, ledger.cursor, facts.server_uuid)
    end = Position(
        epoch=cursor.epoch,
        file=facts.file,
        offset=facts.offset,
        gtid_set=facts.executed,
        server_uuid=facts.server_uuid,
    )
    return BinlogInterval(begin=cursor, end=end, read_to=end, cursor=cursor, files=files)
