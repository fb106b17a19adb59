"""Finds the schema of a table that stops because its schema is unknown: the operator's schema, or else the server's at the live end of the
stream. Used by `wiring`.

Stores the server's schema in the same way as an operator's, so that the stream gives the same changes when it is read again.
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
    """Implements `resolved` of `policy.SchemaDecisions`. Called on the parser's thread."""

    def __init__(self, source: Callable[[], Source], directory: Path) -> None:
        self._source, self._resolutions = source, Resolutions(directory)

    def resolved(self, database: str, table: str, reason: str, location: str) -> TableSchema | None:
        """Returns the schema that an operator gave, or else the server's, or None. Raises SourceConnectionError if the server must be
        queried and does not answer; the engine then reads the statement again.
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
    """Returns the server's schema of a table at a position; None if the position is not the live end. Raises SourceConnectionError."""
    found = _queried(source, lambda session: schema_now(session, database, table, location))
    return found if isinstance(found, TableSchema) else None


def is_no_table_now(source: Source, database: str, table: str) -> bool:
    """Returns whether the server has a view or a sequence of that name. Raises SourceConnectionError."""
    return bool(_queried(source, lambda session: is_no_table(session, database, table)))


def _queried(source: Source, question: Callable[[Any], Any]) -> Any:
    connection = SourceConnection(source)
    try:
        return connection.ask(question)
    finally:
        connection.close()
