"""Reads the settings and the state of a source, once per connection. The source check and the decision where a stream starts use these
facts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.file_creation import creation_of
from sluice.cdc_engine.parser.providers.facts import MARK_VARIABLES, ProviderFacts, read_provider_facts
from sluice.cdc_engine.source.server import Source

VARIABLES = (
    "server_id",
    "server_uuid",
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "max_binlog_total_size",
    "binlog_space_limit",
    "gtid_mode",
    "gtid_executed",
    "gtid_purged",
    "gtid_binlog_pos",
    "log_slave_updates",
    "log_replica_updates",
    "wsrep_on",
    "wsrep_provider",
    *MARK_VARIABLES,
)
# Matches a grant of roles to an account. MariaDB also shows grants of roles to the active role. They do not match, because the role's name
# has no host.
_ROLE_GRANT = re.compile(r"^GRANT (?!.* ON )(.+) TO [^@]+@", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryLog:
    file: str
    size_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replica:
    """One row of SHOW REPLICAS. `uuid` is empty on MariaDB."""

    server_id: int
    uuid: str
    host: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """The settings and state of a server.

    - `server_uuid`: "mariadb-<server id>" on MariaDB, which has no uuid.
    - `file`, `offset`: the current end of the binlog. `logs`: all binlog files, oldest first.
    - `executed`: the executed set at the end of the binlog. `purged`: the executed set before the first file. `executed` and `purged` are
      empty on a server without GTIDs.
    - `variables`: global variables, by name in lower case.
    - `logged_databases`, `unlogged_databases`: binlog_do_db and binlog_ignore_db, separated by commas.
    - `replicates_unlogged`: whether the server is a replica whose binlog lacks the changes that it replicates.
    - `grants`: the rows of SHOW GRANTS, which include the privileges of active roles. `inactive_roles`: the account's other roles, whose
      privileges it does not have.
    - `created`: creation times in seconds since 1970 of the files that the caller asked for and that exist.
    """

    version: str
    mariadb: bool
    server_uuid: str
    gtid_enabled: bool
    executed: str = ""
    purged: str = ""
    file: str = ""
    offset: int = 0
    logs: tuple[BinaryLog, ...] = ()
    logged_databases: str = ""
    unlogged_databases: str = ""
    replicates_unlogged: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grants: tuple[str, ...] = ()
    inactive_roles: tuple[str, ...] = ()
    replicas: tuple[Replica, ...] = ()
    created: Mapping[str, int] = dataclasses.field(default_factory=dict)
    provider: ProviderFacts = dataclasses.field(default_factory=ProviderFacts)


def read_facts(connection: SourceConnection, *files: str) -> ServerFacts:
    """Reads the settings and state of a server. Values that this account may not query stay empty; the source check reports the privileges
    that are missing.

    The creation times of `files` are read over another connection. In `files`, an empty name means the last binlog file.
    """
    variables = _variables(connection)
    grants = _grants(connection)
    mariadb = connection.mariadb
    status = connection.first_of("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
    end = status[0] if status else {}
    file, offset = str(end.get("File", "")), int(end.get("Position", 0))
    logs = _logs(connection)
    identity = f"mariadb-{variables.get('server_id', '')}" if mariadb else variables.get("server_uuid", "")
    return ServerFacts(
        version=connection.server_version,
        mariadb=mariadb,
        server_uuid=identity,
        gtid_enabled=mariadb or variables.get("gtid_mode", "").upper() == "ON",
        executed=_executed(connection, mariadb, file, offset, end),
        purged=_purged(connection, mariadb, variables, logs),
        file=file,
        offset=offset,
        logs=logs,
        logged_databases=str(end.get("Binlog_Do_DB") or ""),
        unlogged_databases=str(end.get("Binlog_Ignore_DB") or ""),
        replicates_unlogged=not logs_replicated(variables) and _is_replica(connection),
        variables=variables,
        grants=grants,
        inactive_roles=_inactive_roles(connection, grants),
        replicas=_replicas(connection),
        created=_created(connection, {name or file for name in files} & {log.file for log in logs}),
        provider=read_provider_facts(connection.first_of, connection.source.host, connection.server_version, variables),
    )


def oldest_file(facts: ServerFacts) -> str:
    """Returns the server's oldest binlog file, or an empty text if the server lists no files."""
    return facts.logs[0].file if facts.logs else ""


def with_oldest_file(source: Source, facts: ServerFacts) -> ServerFacts:
    """Returns the facts with the creation time of the oldest binlog file added. Reads this time over another connection. Raises
    SourceConnectionError.
    """
    file = oldest_file(facts)
    created = creation_of(source, file) if file else 0
    return dataclasses.replace(facts, created={**facts.created, file: created}) if created else facts


def _one_line(gtid_set: str) -> str:
    return gtid_set.replace("\n", "")


def _variables(connection: SourceConnection) -> dict[str, str]:
    names = ", ".join(["%s"] * len(VARIABLES))
    rows = connection.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", VARIABLES)
    return {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}


def _executed(connection: SourceConnection, mariadb: bool, file: str, offset: int, end: Mapping[str, Any]) -> str:
    if not mariadb:
        return _one_line(str(end.get("Executed_Gtid_Set") or ""))
    if not file:
        return ""
    rows = connection.rows("SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (file, offset))
    return str(rows[0]["gtids"] or "")


def _purged(
    connection: SourceConnection, mariadb: bool, variables: Mapping[str, str], logs: tuple[BinaryLog, ...]
) -> str:
    """Returns the executed set before the first file. On MariaDB, this is the GTID position at which the first file begins."""
    if not mariadb:
        return _one_line(variables.get("gtid_purged", ""))
    if not logs:
        return ""
    rows = connection.rows("SELECT BINLOG_GTID_POS(%s, 4) AS gtids", (logs[0].file,))
    return str(rows[0]["gtids"] or "")


def logs_replicated(variables: Mapping[str, str]) -> bool:
    """Returns whether a replica's own binlog has the changes that the replica replicates. True if the variable is unknown."""
    found = variables.get("log_slave_updates") or variables.get("log_replica_updates") or "ON"
    return found.upper() in {"ON", "1"}


def _is_replica(connection: SourceConnection) -> bool:
    """Returns whether the server is a replica. Returns False if this account may not query the replica status."""
    return bool(connection.first_of("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS"))


def _created(connection: SourceConnection, files: set[str]) -> dict[str, int]:
    found = {file: creation_of(connection.source, file) for file in files}
    return {file: created for file, created in found.items() if created}


def _logs(connection: SourceConnection) -> tuple[BinaryLog, ...]:
    rows = connection.first_of("SHOW BINARY LOGS")
    return tuple(BinaryLog(file=str(row["Log_name"]), size_bytes=int(row["File_size"])) for row in rows)


def _grants(connection: SourceConnection) -> tuple[str, ...]:
    """Returns the account's grants, including the privileges of its active roles."""
    return tuple(str(next(iter(row.values()))) for row in connection.first_of("SHOW GRANTS"))


def _inactive_roles(connection: SourceConnection, grants: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the roles in `grants` that are not active in a new session. The account does not have the privileges of these roles."""
    matches = (_ROLE_GRANT.match(grant) for grant in grants)
    granted = {role for match in matches if match is not None for role in _role_names(match[1])}
    if not granted:
        return ()
    rows = connection.first_of("SELECT CURRENT_ROLE() AS roles")
    return tuple(sorted(granted.difference(*(_role_names(str(row["roles"])) for row in rows))))


def _role_names(text: str) -> set[str]:
    """Parses a list of roles, for example "`r1`@`%`,`r2`@`%`" of MySQL. CURRENT_ROLE() of MariaDB is the only active role, without quotes.
    Returns the names without quotes and without the host `%`.
    """
    return {re.sub("[`']", "", name).strip().removesuffix("@%") for name in text.split(",")}


def _replicas(connection: SourceConnection) -> tuple[Replica, ...]:
    rows = connection.first_of("SHOW REPLICAS", "SHOW SLAVE HOSTS")
    return tuple(
        Replica(
            server_id=int(row.get("Server_Id", row.get("Server_id", 0))),
            uuid=str(row.get("Replica_UUID", row.get("Slave_UUID", "")) or ""),
            host=str(row.get("Host", "") or ""),
        )
        for row in rows
    )


def dump_clients(connection: SourceConnection) -> tuple[str, ...]:
    """Returns the addresses of the clients that dump the server's binlog, as far as this account may see them."""
    rows = connection.first_of(
        "SELECT HOST AS host FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%' ORDER BY ID"
    )
    return tuple(str(row["host"]) for row in rows)
