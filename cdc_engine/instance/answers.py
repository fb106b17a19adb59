"""Finds the schema of a table that the schema history does not know: the schema that an operator gave, or the schema that the table has on
the server now. Used by `consumer_wiring` and `engine_acts`.

The server's schema is used only if the stream is reading the newest binlog file, and the rest of this file has no statement that may have
changed the table. A schema from the server is stored in the same record as one from an operator. So changes that are read a second time get
the same schema.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.source.live_schema import is_no_table, schema_now
from sluice.cdc_engine.table_meta.schema import TableSchema

log = structlog.get_logger()


class SchemaAnswers:
    """Finds the schemas of tables that the schema history does not know. A table stops if no schema is found. `policy.SchemaDecisions`
    calls `resolved` on the parser's thread.
    """

    def __init__(self, source: Callable[[], Source], directory: Path) -> None:
        self._source, self._resolutions = source, Resolutions(directory)

    def resolved(self, database: str, table: str, order_key: int, reason: str, location: str) -> TableSchema | None:
        """Returns the schema that an operator gave for the table's stop at the event with this order key. If no operator gave one, stores
        and returns the schema that `schema_at` finds for the position `location`. Returns None if `location` is empty, or if `schema_at`
        finds no schema. `reason` is the reason of the stop. Raises SourceConnectionError if the server does not answer.
        """
        kept = self._resolutions.schema(database, table, order_key, reason)
        if kept is not None or not location:
            return kept
        found = schema_at(self._source(), database, table, location)
        if found is None:
            return None
        log.warning("schema_read_from_source", database=database, table=table, reason=reason)
        self._resolutions.keep(found, order_key)
        return self._resolutions.schema(database, table, order_key, reason)


def schema_at(source: Source, database: str, table: str, location: str) -> TableSchema | None:
    """Returns the schema that the table has on the server now. Returns None if the table does not exist, if the position `location` (as
    text) is not in the newest binlog file, or if a later statement may have changed the table. Raises SourceConnectionError if the server
    does not answer.
    """
    found = _queried(source, lambda session: schema_now(session, database, table, location))
    return found if isinstance(found, TableSchema) else None


def is_no_table_now(source: Source, database: str, table: str) -> bool:
    """Returns whether `table` is now the name of a view or a sequence on the server. Raises SourceConnectionError if the server does not
    answer.
    """
    return bool(_queried(source, lambda session: is_no_table(session, database, table)))


def _queried(source: Source, function: Callable[[Any], Any]) -> Any:
    connection = SourceConnection(source)
    try:
        return connection.query(function)
    finally:
        connection.close()
