"""Checks whether Sluice can capture a server, and reports all problems at once. Pure functions. Called at every connect and by `sluice
check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sluice.cdc_engine.errors import ReplicaClashError, SourceCheckError
from sluice.cdc_engine.parser.providers.advice import ADVICE, Advice
from sluice.cdc_engine.parser.providers.decision import DAY_HOURS, provider_of, retention_of
from sluice.cdc_engine.parser.server_facts import ServerFacts, logs_replicated
from sluice.cdc_engine.source.server import Source

VERSION_MIN = (5, 6)
MARIADB_VERSION_MIN = (10, 2)
MIXED = "MIXED"
# A name that no table has. If the patterns of conf/ capture this name in a database, they capture every table of the database.
ANY_TABLE = "sluice any table"
SYSTEM_DATABASES = {"mysql", "sys", "information_schema", "performance_schema"}
# The privileges on *.* that an account needs to see all triggers and views.
OBJECT_PRIVILEGES = ("SELECT", "SHOW VIEW", "TRIGGER")
# The server versions with which Sluice's tests run.
MYSQL_TESTED, MARIADB_TESTED = ((5, 7), (8, 0), (9,)), ((10, 11), (11, 4))
BINLOG_MONITOR_SINCE = (10, 5)  # From this version on, MariaDB calls REPLICATION CLIENT `BINLOG MONITOR`.
# Privilege → the names under which servers grant it.
PRIVILEGES = {
    "REPLICATION SLAVE": ("REPLICATION SLAVE", "REPLICATION REPLICA"),
    "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR"),
    "SELECT": ("SELECT",),
}
_GRANT = re.compile(r"^GRANT (?P<privileges>.+?) ON (?P<object>.+?) TO ", re.IGNORECASE)


def check_source(
    source: Source,
    facts: ServerFacts,
    *,
    displaced: bool = False,
    captured: Callable[[str, str], bool] = lambda _database, _table: False,
) -> list[str]:
    """Returns warnings about a server, one sentence each. Raises SourceCheckError with all problems, or ReplicaClashError if the server
    itself or another replica uses the engine's server id.

    `captured` tells whether a table (database, table) is captured. `displaced` tells whether the server ended the engine's last dump
    because a replica with the same identity connected. In this case, the engine must not connect again, because the dumps of the engine and
    of that replica would end each other in turn.
    """
    problems = [
        *_setting_problems(facts),
        *_unlogged_problems(facts, captured),
        *_grant_problems(source, facts),
        *_mixed_problems(source, facts),
    ]
    if problems:
        raise SourceCheckError(problems)
    _refuse_clash(source, facts, displaced=displaced)
    return source_warnings(facts)


def _setting_problems(facts: ServerFacts) -> list[str]:
    problems = []
    variables = facts.variables
    if facts.provider.proxy:
        problems.append(
            "ProxySQL answers at this address, and ProxySQL does not forward replication: write the address of the "
            "MySQL server itself in conf/"
        )
    version, lowest = server_version(facts.version), MARIADB_VERSION_MIN if facts.mariadb else VERSION_MIN
    if version < lowest:
        problems.append(
            f"the server's version {facts.version} is too old: Sluice needs {'.'.join(map(str, lowest))} or later"
        )
    if variables.get("log_bin", "OFF").upper() not in ("ON", "1"):
        problems.append(f"log_bin is OFF: the server writes no binlog; {advice_of(facts).log_bin}")
    row_format = variables.get("binlog_format", "ROW").upper()
    if row_format not in {"ROW", MIXED}:
        problems.append(f"binlog_format is {row_format}: {advice_of(facts).set('binlog_format', 'ROW')}")
    return problems


def _unlogged_problems(facts: ServerFacts, captured: Callable[[str, str], bool]) -> Iterator[str]:
    """Yields a sentence for each setting of the server that leaves changes of captured tables out of its binlog."""
    if facts.replicates_unlogged:
        yield (
            "the server is a replica, and its binlog lacks the changes that it replicates, because log_replica_updates (or "
            "log_slave_updates) is OFF: turn it on in the server's options and restart the server, or capture its primary. If the server "
            "is not a replica any more, run RESET REPLICA ALL"
        )
    for database in _databases(facts.unlogged_databases):
        if captured(database, ANY_TABLE):
            yield (
                f"binlog_ignore_db has {database}, so the binlog lacks the rows of its tables, which conf/ captures: remove {database} "
                "from the server's options and restart the server, or exclude its tables in conf/"
            )


def _databases(names: str) -> list[str]:
    """Returns the databases in `names`, a list separated by commas, without the server's own databases."""
    return [name for name in names.split(",") if name and name.lower() not in SYSTEM_DATABASES]


def filtered_binlog_sentence(facts: ServerFacts) -> str:
    """Returns a sentence if the server leaves databases out of its binlog, otherwise ""."""
    logged, unlogged = facts.logged_databases, ",".join(_databases(facts.unlogged_databases))
    if not (logged or unlogged):
        return ""
    what = f"binlog_do_db is {logged}" if logged else f"binlog_ignore_db is {unlogged}"
    left_out = "other databases" if logged else "these databases"
    return (
        f"{what}: the binlog lacks the rows of {left_out}. If a session runs a TRUNCATE or ALTER of a captured table after USE of such "
        "a database, the binlog lacks the statement too, and Sluice cannot notice this. Remove the option, and restart the server"
    )


def is_mixed(facts: ServerFacts) -> bool:
    """Returns whether the server decides for each statement whether to log row events or the statement itself (binlog_format MIXED)."""
    return facts.variables.get("binlog_format", "").upper() == MIXED


def sees_objects(facts: ServerFacts) -> bool:
    """Returns whether the account may see all triggers and views of the server."""
    return not _missing_object_privileges(facts)


def _missing_object_privileges(facts: ServerFacts) -> list[str]:
    """Returns the privileges of OBJECT_PRIVILEGES that the account does not have on *.*. After a partial revoke, returns all of
    OBJECT_PRIVILEGES, because the revoke may hide any database.
    """
    if any(grant.upper().startswith("REVOKE ") for grant in facts.grants):
        return list(OBJECT_PRIVILEGES)
    granted: set[str] = set()
    for grant in facts.grants:
        match = _GRANT.match(grant)
        if match is not None and match["object"].replace("`", "") == "*.*":
            granted |= {name.strip().upper() for name in match["privileges"].split(",")}
    return [] if "ALL PRIVILEGES" in granted else [name for name in OBJECT_PRIVILEGES if name not in granted]


def _mixed_problems(source: Source, facts: ServerFacts) -> list[str]:
    missing = _missing_object_privileges(facts) if is_mixed(facts) else []
    if not missing:
        return []
    advice = advice_of(facts)
    problem = (
        f"binlog_format is MIXED, and the user {source.user} may not read all triggers and views, by which Sluice "
        "finds out what a statement changes"
    )
    grant = f"run GRANT {', '.join(missing)} ON *.* TO this user, as {advice.administrator}{_or_role(facts)}"
    return [f"{problem}: {advice.set('binlog_format', 'ROW')}; or {grant}"]


def mixed_format_sentence(facts: ServerFacts) -> str:
    """Returns a sentence if binlog_format is MIXED, so that the server may log row changes as statements. Otherwise returns ""."""
    if not is_mixed(facts):
        return ""
    return (
        "binlog_format is MIXED, and Sluice follows row events only. If the server logs a change as a statement, the changed table "
        "stops until a re-snapshot (STATEMENT_FORMAT). The tables that triggers, views and foreign keys change together with this table "
        "stop too. A statement that calls a stored function stops all tables. With ROW, the server logs no change as a statement: "
        f"{advice_of(facts).set('binlog_format', 'ROW')}"
    )


def unfollowed_format(facts: ServerFacts, *, follows_mixed: bool) -> str:
    """Returns a sentence that tells why a running stream must not continue with the server's current binlog_format, or "" if it may.
    `follows_mixed` tells whether the schema history knows the server's triggers and views, without which Sluice cannot follow MIXED.
    """
    row_format = facts.variables.get("binlog_format", "ROW").upper()
    if row_format == "ROW" or (row_format == MIXED and follows_mixed):
        return ""
    return (
        f"binlog_format of the source became {row_format}: since then, the changes that statements make through "
        "triggers and views are unknown; set binlog_format back to ROW"
    )


def server_version(text: str) -> tuple[int, ...]:
    """Parses the text of a server version into numbers. `5.5.5-10.6.12-MariaDB` becomes (10, 6, 12), because old MariaDB versions write
    5.5.5 before their own version. Returns () if the text has no version.
    """
    numbers = re.findall(r"\d+\.\d+\.\d+", text.removeprefix("5.5.5-"))
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


def missing_privileges(facts: ServerFacts) -> list[str]:
    """Returns the privileges that the account lacks, by the names in the manual of the server. SELECT on any object is sufficient, because
    the account need not read all tables. Sluice never needs SUPER.
    """
    granted: set[str] = set()
    for grant in facts.grants:
        match = _GRANT.match(grant)
        if match is None:
            continue
        everywhere = match["object"].replace("`", "") == "*.*"
        names = {re.sub(r"\s*\(.*", "", name).strip().upper() for name in match["privileges"].split(",")}
        granted |= names if everywhere else names & {"SELECT", "ALL PRIVILEGES"}
        if "ALL PRIVILEGES" in names:
            granted |= {"SELECT"} if not everywhere else {name for names in PRIVILEGES.values() for name in names}
    missing = [privilege for privilege, names in PRIVILEGES.items() if granted.isdisjoint(names)]
    if facts.mariadb and server_version(facts.version) >= BINLOG_MONITOR_SINCE:
        return ["BINLOG MONITOR" if privilege == "REPLICATION CLIENT" else privilege for privilege in missing]
    return missing


def _grant_problems(source: Source, facts: ServerFacts) -> list[str]:
    administrator = advice_of(facts).administrator
    return [
        f"the user {source.user} lacks {privilege}: run GRANT {privilege} ON *.* TO this user, as {administrator}{_or_role(facts)}"
        for privilege in missing_privileges(facts)
    ]


def _or_role(facts: ServerFacts) -> str:
    """Returns the end of an advice to grant a privilege: what to do if a role of the account has the privilege but is not active. Returns
    "" if all roles are active.
    """
    roles = " or ".join(facts.inactive_roles)
    if not roles:
        return ""
    statement = f"SET DEFAULT ROLE {roles} FOR this user" if facts.mariadb else "SET DEFAULT ROLE ALL TO this user"
    return f"; or, if the inactive role {roles} has this privilege, run {statement}"


def _refuse_clash(source: Source, facts: ServerFacts, *, displaced: bool) -> None:
    """Raises ReplicaClashError if the source itself or another replica has the engine's server id. With the same id, the server would end
    the engine's dump whenever the other replica connects, and the other replica's dump whenever the engine connects.

    A replica that also has the engine's uuid is an earlier dump of this engine, or the dump of the host that ran this engine before. The
    engine's new dump replaces that dump, so this is not a clash. `displaced` tells whether a replica has just ended the engine's dump. If
    so, every replica with the engine's server id is a clash, because such a replica is not an earlier dump.
    """
    if facts.variables.get("server_id") == str(source.replica_id):
        raise ReplicaClashError(
            f"server_id {source.replica_id} is the server_id of {source.address} itself; {source.clash_remedy}"
        )
    for replica in facts.replicas:
        same = replica.uuid == source.replica_uuid if replica.uuid else replica.host == source.replica_host
        if replica.server_id == source.replica_id and (displaced or not same):
            raise ReplicaClashError(
                f"another replica of {source.address} has the server id {source.replica_id} of this engine: "
                f"its host is {replica.host or 'unknown'}, its uuid {replica.uuid or 'unknown'}; "
                f"{source.clash_remedy}"
            )


def source_warnings(facts: ServerFacts, retention_hours_min: float = DAY_HOURS) -> list[str]:
    """Returns warnings for an operator about a server that Sluice can capture, one sentence each."""
    sentences = (
        untested_version_sentence(facts),
        mixed_format_sentence(facts),
        filtered_binlog_sentence(facts),
        unlogged_cluster_sentence(facts),
        short_retention_sentence(facts, retention_hours_min),
    )
    return [*_image_warnings(facts), *filter(None, sentences)]


def unlogged_cluster_sentence(facts: ServerFacts) -> str:
    """Returns a sentence if the server is a node of a Galera cluster whose binlog lacks the changes of other nodes, otherwise "". This is a
    warning and not an error, because the binlog of the node has all changes if clients write only to this node.
    """
    provider, member = facts.variables.get("wsrep_provider", ""), facts.variables.get("wsrep_on", "")
    if provider.lower() in {"", "none"} or member.upper() not in {"ON", "1"} or logs_replicated(facts.variables):
        return ""
    return (
        "the server is a node of a Galera cluster, and its binlog lacks what clients write to other nodes, because log_slave_updates "
        "is OFF: turn it on in the server's options and restart the server"
    )


def untested_version_sentence(facts: ServerFacts) -> str:
    """Returns a sentence if Sluice's tests do not run on this server version, otherwise ""."""
    name, tested = ("MariaDB", MARIADB_TESTED) if facts.mariadb else ("MySQL", MYSQL_TESTED)
    version = server_version(facts.version)
    if not version or any(version[: len(each)] == each for each in tested):
        return ""
    known = ", ".join(".".join(map(str, each)) for each in tested)
    return (
        f"{name} {'.'.join(map(str, version))} is not among the versions with which Sluice is tested ({name} "
        f"{known}): an event that Sluice cannot read stops the stream or a table; compare a table with "
        "`sluice equal` after the first changes"
    )


def advice_of(facts: ServerFacts) -> Advice:
    """Returns the advice for this server, in the terms of its provider."""
    return ADVICE[provider_of(facts.provider)]


def _image_warnings(facts: ServerFacts) -> list[str]:
    """Returns a warning if row images do not contain all columns (binlog_row_image)."""
    image = facts.variables.get("binlog_row_image", "FULL").upper()
    if image == "FULL":
        return []
    lost = (
        "an update of a row that the lake does not have fails, a table without a primary key may stop, and a broker stops "
        "at a row image that lacks a column of its partition_hash"
    )
    if facts.mariadb:
        lost += (
            "; a table stops at a REPLACE that Sluice recognizes, and Sluice takes any other REPLACE for an update that keeps the "
            "omitted columns"
        )
    return [f"binlog_row_image is {image}: {lost}; use FULL: {advice_of(facts).set('binlog_row_image', 'FULL')}"]


def failover_sentence(facts: ServerFacts) -> str:
    """Returns a sentence that tells how the stream continues if the host name in conf/ moves to another server with the same settings."""
    if facts.gtid_enabled:
        return (
            "if the address moves to another server, the stream continues by GTID on that server if it has "
            "executed all transactions that the engine read"
        )
    advice = advice_of(facts)
    return (
        f"without GTIDs, if the address moves to another server ({advice.moves}), the stream ends as "
        f"POSITION_LOST and the tables need a re-snapshot: {advice.gtids}"
    )


def short_retention_sentence(facts: ServerFacts, hours_min: float = DAY_HOURS) -> str:
    """Returns a sentence if the server promises to retain its binlog for less than `hours_min` hours, or promises nothing. Otherwise
    returns "".
    """
    retention = retention_of(facts.provider, facts.variables)
    if retention.seconds >= hours_min * 3600:
        return ""
    return (
        f"{retention.why}: if the source purges a file that a stopped engine still needs, the engine loses "
        f"its position (POSITION_LOST); {advice_of(facts).keep_more}"
    )


def retention_seconds(facts: ServerFacts) -> float:
    """Returns for how many seconds the server promises to retain its binlog: infinity if it never purges, 0 if it promises nothing."""
    return retention_of(facts.provider, facts.variables).seconds
