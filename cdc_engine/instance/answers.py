"""Finds the schema of a table when the schema history does not know it: the schema that an operator gave, or the one that the server has
now. Used by `wiring`.

The server's schema counts only if the stream has reached the end of the binlog. It is stored like an operator's schema, so that the stream
decodes the same changes in the same way when they are read again.
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
    """Returns schemas for tables that would otherwise stop, because their schema is unknown. `resolved` is a callback of
    `policy.SchemaDecisions`, on the parser's thread.
    """

    def __init__(self, source: Callable[[], Source], directory: Path) -> None:
        self._source, self._resolutions = source, Resolutions(directory)

    def resolved(self, database: str, table: str, reason: str, location: str) -> TableSchema | None:
        """Returns the schema that an operator gave. If there is none, returns the server's schema if `location` is the end of the binlog,
        otherwise None. Raises SourceConnectionError if the server does not answer. The engine then reads the statement again.
        """
        kept = self._resolutions.schema(database, table, reason)
        if kept is not None or not location:
            return kept
        found = schema_at(self._source(), database, table, location)
        if found is None:
            return None
        log.warning("schema_read_again", database=database, table=table, reason=reason)
        self._resolutions.keep(found, reason)
        return self._resolutions.schema(database, table, reason)


def schema_at(source: Source, database: str, table: str, location: str) -> TableSchema | None:
    """Returns the schema that the server has now, or None if `location` is not the end of the binlog. Raises SourceConnectionError if the
    server does not answer.
    """
    found = _queried(source, lambda session: schema_now(session, database, table, location))
    return found if isinstance(found, TableSchema) else None


def is_no_table_now(source: Source, database: str, table: str) -> bool:
    """Returns whether the server now has a view or a sequence of that name. Raises SourceConnectionError if the server does not answer."""
    return bool(_queried(source, lambda session: is_no_table(session, database, table)))


def _queried(source: Source, question: Callable[[Any], Any]) -> Any:
    connection = SourceConnection(source)
    try:
        return connection.ask(question)
    finally:
        connection.close()
