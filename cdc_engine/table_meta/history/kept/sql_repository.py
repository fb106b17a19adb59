"""The schema history in a table of any SQL database that SQLAlchemy reaches by URL, for hosts without a shared file system. Created by
`instance`.

Rows correspond to lines of the file: they are only added, in order, until compaction replaces them in one transaction. The lease excludes
other writers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import sqlalchemy
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cdc_engine.errors import ConfigurationError, MetaError
from cdc_engine.sql_url import url_with_password
from cdc_engine.table_meta.history.kept.repository import HistoryRecord, holding

TABLE = "sluice_schema_history"
LONG_TEXT = sqlalchemy.Text().with_variant(LONGTEXT(), "mysql", "mariadb")  # MySQL's TEXT ends at 64 KiB
_metadata = sqlalchemy.MetaData()
_rows = sqlalchemy.Table(
    TABLE,
    _metadata,
    sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True, autoincrement=True),
    sqlalchemy.Column("destination", sqlalchemy.String(64), nullable=False, index=True),
    sqlalchemy.Column("record", LONG_TEXT, nullable=False),
)


class SqlRepository:
    """One destination's records. `url`: for SQLAlchemy; a password of the form $NAME is read from the environment."""

    def __init__(self, url: str, destination: str) -> None:
        """Creates the table if it is missing. Raises ConfigurationError for an unusable URL, MetaError if the database cannot be
        reached.
        """
        full_url = url_with_password(url, "schema_history_url")
        self._name = f"{full_url.render_as_string(hide_password=True)} ({TABLE}, {destination})"
        self._destination = destination
        try:
            self._engine = sqlalchemy.create_engine(full_url, pool_pre_ping=True)
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigurationError(f"schema_history_url names a database that has no driver here: {error}") from error
        with self._told("opened"):
            _metadata.create_all(self._engine)

    def load(self) -> list[HistoryRecord]:
        query = sqlalchemy.select(_rows.c.id, _rows.c.record).where(_rows.c.destination == self._destination)
        with self._told("read"), self._engine.connect() as connection:
            found = connection.execute(query.order_by(_rows.c.id)).all()
        return holding(self._record(text, number) for number, text in found)

    def append(self, records: Iterable[HistoryRecord]) -> None:
        with self._told("written"), self._engine.begin() as connection:
            self._insert(connection, records)

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        with self._told("written"), self._engine.begin() as connection:
            connection.execute(sqlalchemy.delete(_rows).where(_rows.c.destination == self._destination))
            self._insert(connection, records)

    def __str__(self) -> str:
        return self._name

    def _insert(self, connection: sqlalchemy.Connection, records: Iterable[HistoryRecord]) -> None:
        rows = [{"destination": self._destination, "record": record.to_line().decode()} for record in records]
        if rows:
            connection.execute(sqlalchemy.insert(_rows), rows)

    def _record(self, text: str, number: int) -> HistoryRecord:
        try:
            return HistoryRecord.from_line(text.encode())
        except (ValueError, KeyError, TypeError) as error:
            raise MetaError(f"row {number} of {self} is damaged; restore the table or start a new epoch") from error

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else type(error).__name__
            raise MetaError(f"the schema history {self} cannot be {what}: {cause}") from error
