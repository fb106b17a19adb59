"""Stores records in a table of any SQL database that SQLAlchemy supports. Each write is one statement that names the version that it
replaces.

An SQLAlchemy engine and its connections belong to one process, so a forked run opens its own engine.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, NotSharedError, SecretUnavailableError, StaleWriteError
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord, in_folder
from sluice.extras import Extra, require
from sluice.secret_values import is_reference

TABLE = "sluice_meta"
# A request fails if the database does not answer within this time. The time is short, because the holder of a lease must notice in time
# that it cannot renew the lease.
ANSWER_SECONDS_MAX = 10
SETTING = "meta.url"
OPENED = "opened"
OPTIONS = "options"  # The argument with which Postgres gets settings of the session.
CREATED_MAX = 50  # One statement creates at most this many records.
# Scheme of a URL without a driver → the scheme with the driver that Sluice installs.
DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}
# The SQL type for texts of any length: on MySQL LONGTEXT, because its TEXT has at most 64 KiB.
LONG_TEXT = sqlalchemy.Text().with_variant(LONGTEXT(), "mysql", "mariadb")
_metadata = sqlalchemy.MetaData()
_records = sqlalchemy.Table(
    TABLE,
    _metadata,
    sqlalchemy.Column("destination", sqlalchemy.String(64), primary_key=True),
    sqlalchemy.Column("name", sqlalchemy.String(128), primary_key=True),
    sqlalchemy.Column("version", sqlalchemy.BigInteger, nullable=False),
    sqlalchemy.Column("token", sqlalchemy.BigInteger, nullable=False),
    sqlalchemy.Column("record", LONG_TEXT, nullable=False),
)
_OF_MYSQL = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), ANSWER_SECONDS_MAX)
# Kind of database, as the URL names it → the options that limit how long the driver waits for the database.
TIMEOUTS: dict[str, Mapping[str, int | str]] = {
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
    "postgresql": {
        "connect_timeout": ANSWER_SECONDS_MAX,
        "tcp_user_timeout": ANSWER_SECONDS_MAX * 1000,
        OPTIONS: f"-c statement_timeout={ANSWER_SECONDS_MAX * 1000}",
    },
    "sqlite": {"timeout": ANSWER_SECONDS_MAX},
}  # fmt: skip


class SqlRecordStore(RecordStore):
    """A record store in a SQL database. `url` is in SQLAlchemy's form. `password`, or the password part of `url`, may be the location of
    the password, for example `$NAME`. The password is then read at each connect.
    """

    def __init__(self, url: str, destination: str, password: str = "") -> None:
        """Connects to the database, and creates the table of records if it is missing. Raises ConfigurationError if the URL is invalid, and
        MetaError if the database does not answer.
        """
        self._destination = destination
        full_url, secret = database_url(url, password)
        # The name for messages, without the URL's query, because options in it may contain a password.
        self._name = f"{full_url.set(query={}).render_as_string(hide_password=True)} ({TABLE}, {destination})"
        if full_url.get_backend_name() == "postgresql":
            require(Extra.POSTGRES, ConfigurationError)
        try:
            self._engine = _engine_of(full_url, secret, os.getpid())
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigurationError(
                f"{SETTING} names a database whose driver cannot be loaded: {error}; install the driver on "
                "this host, or correct the URL"
            ) from error
        with self._translated(OPENED):
            _make_table(self._engine)

    def read(self, name: str) -> StoredRecord | None:
        query = sqlalchemy.select(_records.c.record, _records.c.version, _records.c.token).where(*self._key(name))
        with self._translated("read"), self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return StoredRecord(row.record, int(row.version), int(row.token)) if row else None

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        query = sqlalchemy.select(_records.c.name, _records.c.record, _records.c.version, _records.c.token).where(
            _records.c.destination == self._destination, _records.c.name.startswith(prefix, autoescape=True)
        )
        with self._translated("read"), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        # Compares the names again, because LIKE ignores letter case in SQLite.
        found = (row for row in rows if in_folder(row.name, prefix))
        return {str(row.name): StoredRecord(row.record, int(row.version), int(row.token)) for row in found}

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:  # noqa: ARG002  of the contract
        """Creates the record if `version` is NOT_THERE. Otherwise replaces the record if its stored version is `version` and its stored
        token is not above `token`. Raises StaleWriteError if these conditions are not met. Ignores `also`, which is for programs that
        read ZooKeeper.
        """
        values = {"record": text, "version": version + 1, "token": token}
        try:
            with self._translated("written"), self._engine.begin() as connection:
                if version == NOT_THERE:
                    row = {**values, "destination": self._destination, "name": name}
                    connection.execute(sqlalchemy.insert(_records).values(**row))
                    return version + 1
                is_read = (*self._key(name), _records.c.version == version, _records.c.token <= token)
                if connection.execute(sqlalchemy.update(_records).where(*is_read).values(**values)).rowcount == 1:
                    return version + 1
        except IntegrityError:
            pass  # Raises StaleWriteError below, because another process has created the record first.
        raise StaleWriteError(
            f"{name} in {self} no longer has version {version}: another process has written this record"
        )

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Creates or replaces many records. Creates up to CREATED_MAX new records with one statement, and replaces existing records one by
        one.
        """
        names = list(texts)
        for begin in range(0, len(names), CREATED_MAX):
            some = names[begin : begin + CREATED_MAX]
            query = sqlalchemy.select(_records.c.name).where(
                _records.c.destination == self._destination, _records.c.name.in_(some)
            )
            new = {"version": NOT_THERE + 1, "token": token, "destination": self._destination}
            created = set[str]()
            # If another process has created one of the records first, the statement fails, and the records are written one by one.
            with contextlib.suppress(IntegrityError), self._translated("written"), self._engine.begin() as connection:
                there = set(connection.execute(query).scalars())
                rows = [{**new, "name": name, "record": texts[name]} for name in some if name not in there]
                if rows:
                    connection.execute(sqlalchemy.insert(_records).values(rows))
                created = {str(row["name"]) for row in rows}
            super().write_all({name: texts[name] for name in some if name not in created}, token=token)

    def remove(self, name: str, version: int | None = None) -> bool:
        which = self._key(name) if version is None else (*self._key(name), _records.c.version == version)
        with self._translated("written"), self._engine.begin() as connection:
            return connection.execute(sqlalchemy.delete(_records).where(*which)).rowcount == 1

    def __str__(self) -> str:
        return self._name

    def _key(self, name: str) -> tuple[sqlalchemy.ColumnElement[bool], ...]:
        return _records.c.destination == self._destination, _records.c.name == name

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except SecretUnavailableError as error:
            if what == OPENED:
                raise
            raise NotSharedError(f"{self} cannot be {what}: {error}; Sluice tries again") from None
        except SQLAlchemyError as error:
            # Opens new connections for later requests. A server that became a replica in a failover still answers on the old connections,
            # but refuses writes.
            self._engine.dispose()
            cause = error.orig if isinstance(error, DBAPIError) else type(error).__name__
            raise NotSharedError(f"{self} cannot be {what}: {cause}; Sluice tries again") from error


def database_url(url: str, password: str = "") -> tuple[sqlalchemy.URL, str]:
    """Returns the URL with the driver that Sluice installs, and the location of the password, for example `$NAME`.

    The password is `password` or, if `password` is empty, the password part of `url`. If the password is a location, the returned URL has
    no password. Otherwise returns the URL with its own password, and "". Raises ConfigurationError if the URL is invalid. The message never
    contains a secret.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # Leaves out SQLAlchemy's message, which may contain a part of the password.
        raise ConfigurationError(
            f"{SETTING} is not the URL of a database, such as mysql+pymysql://user:$NAME@host/db; "
            "write characters like / and @ of a password as %2F and %40"
        ) from None
    parsed = parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))
    location = password or str(parsed.password or "")
    if not is_reference(location):
        return parsed, ""
    return parsed.set(password=""), location


@functools.lru_cache(maxsize=16)
def _engine_of(url: sqlalchemy.URL, secret: str, pid: int) -> sqlalchemy.Engine:  # noqa: ARG001  the process is part of the key
    # With AUTOCOMMIT, each write is one statement that commits by itself. Otherwise a process that is suspended before its COMMIT would
    # keep the row locked for all other processes.
    engine = sqlalchemy.create_engine(url, pool_pre_ping=True, isolation_level="AUTOCOMMIT", connect_args=_limits(url))
    if secret:

        @sqlalchemy.event.listens_for(engine, "do_connect")
        def _log_in(_dialect: object, _record: object, _args: object, parameters: dict[str, Any]) -> None:
            parameters["password"] = filled(secret, f"the password of {SETTING}")

    return engine


def _limits(url: sqlalchemy.URL) -> dict[str, int | str]:
    """Returns the arguments that limit how long the driver waits for the database. Leaves out those that the URL has. Keeps the `options`
    of the URL, which follow the limit in `options` and thus override it.
    """
    limits, given = TIMEOUTS.get(url.get_backend_name(), {}), url.normalized_query
    kept: dict[str, int | str] = {name: value for name, value in limits.items() if name not in given}
    if OPTIONS in limits and OPTIONS in given:
        kept[OPTIONS] = " ".join((str(limits[OPTIONS]), *given[OPTIONS]))
    return kept


def _make_table(engine: sqlalchemy.Engine) -> None:
    """Creates the table if it is missing. Another process may create it at the same time."""
    try:
        _metadata.create_all(engine)
    except SQLAlchemyError:
        if not sqlalchemy.inspect(engine).has_table(TABLE):
            raise
