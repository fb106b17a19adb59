"""Checks whether a server can be captured, and reports all problems at once. Pure; called at every connect and by `sluice check`."""

from __future__ import annotations

import re

from cdc_engine.errors import ReplicaClashError, SourceCheckError
from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.source.server import Source

DAY_SECONDS = 86_400
VERSION_MIN = (5, 6)
MARIADB_VERSION_MIN = (10, 2)
# Privilege → the names under which servers grant it.
PRIVILEGES = {
    "REPLICATION SLAVE": ("REPLICATION SLAVE", "REPLICATION REPLICA"),
    "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR"),
    "SELECT": ("SELECT",),
}
_GRANT = re.compile(r"^GRANT (?P<privileges>.+?) ON (?P<object>.+?) TO ", re.IGNORECASE)


def check_source(source: Source, facts: ServerFacts, *, displaced: bool = False) -> list[str]:
    """Returns warnings, one sentence each. Raises SourceCheckError with all problems, ReplicaClashError if another replica has our
    identity.

    `displaced`: the server ended our last dump for another one with our identity. The other one keeps its dump, because otherwise each
    would end the other in turn.
    """
    problems = [*_setting_problems(facts), *_grant_problems(source, facts)]
    if problems:
        raise SourceCheckError(problems)
    _refuse_clash(source, facts, displaced=displaced)
    return _warnings(facts)


def _setting_problems(facts: ServerFacts) -> list[str]:
    problems = []
    variables = facts.variables
    version, lowest = server_version(facts.version), MARIADB_VERSION_MIN if facts.mariadb else VERSION_MIN
    if version < lowest:
        problems.append(f"the server's version {facts.version} is below {'.'.join(map(str, lowest))}")
    if variables.get("log_bin", "OFF").upper() not in ("ON", "1"):
        problems.append("log_bin is OFF: the server writes no binlog; start it with log_bin set")
    row_format = variables.get("binlog_format", "ROW").upper()
    if row_format != "ROW":
        problems.append(
            f"binlog_format is {row_format}: SET GLOBAL binlog_format = 'ROW', and in the server's option file"
        )
    return problems


def server_version(text: str) -> tuple[int, ...]:
    """Parses a version. `5.5.5-10.6.12-MariaDB` is (10, 6, 12): old MariaDB versions put another version before their own."""
    numbers = re.findall(r"\d+\.\d+\.\d+", text.removeprefix("5.5.5-"))
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


def missing_privileges(facts: ServerFacts) -> list[str]:
    """Returns the privileges that the account needs and lacks, under the names that every server accepts in a GRANT."""
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
    return [privilege for privilege, names in PRIVILEGES.items() if granted.isdisjoint(names)]


def _grant_problems(source: Source, facts: ServerFacts) -> list[str]:
    return [
        f"{source.user} lacks {privilege}: GRANT {privilege} ON *.* TO it" for privilege in missing_privileges(facts)
    ]


def _refuse_clash(source: Source, facts: ServerFacts, *, displaced: bool) -> None:
    """Raises ReplicaClashError if another replica has our identity: the server ends one of two such dumps each time the other one connects.

    A replica with our uuid is our own earlier dump, or that of the host from which this one took over: the new dump replaces it.
    """
    if facts.variables.get("server_id") == str(source.replica_id):
        raise ReplicaClashError(
            f"server_id {source.replica_id} is that of {source.address} itself; {source.clash_remedy}"
        )
    for replica in facts.replicas:
        same = replica.uuid == source.replica_uuid if replica.uuid else replica.host == source.replica_host
        if replica.server_id == source.replica_id and (displaced or not same):
            raise ReplicaClashError(
                f"another replica of {source.address} has our server id {source.replica_id}: it calls itself "
                f"{replica.host or 'by no name'}, uuid {replica.uuid or 'unknown'}; {source.clash_remedy}"
            )


def _warnings(facts: ServerFacts) -> list[str]:
    return [*_image_warnings(facts), *_retention_warnings(facts)]


def _image_warnings(facts: ServerFacts) -> list[str]:
    """Returns warnings about row images without all columns, which are applied but do not contain everything."""
    image = facts.variables.get("binlog_row_image", "FULL").upper()
    if image == "FULL":
        return []
    lost = (
        "an update of a row that the lake does not have fails, a table without a primary key may stop, and a broker stops "
        "where a column of its partition_hash is left out"
    )
    if facts.mariadb:
        lost += "; a REPLACE looks like an update that keeps the columns it left out, and stops the table where it can be told apart"
    return [f"binlog_row_image is {image}: {lost}; SET GLOBAL binlog_row_image = 'FULL' is safe"]


def _retention_warnings(facts: ServerFacts) -> list[str]:
    seconds = retention_seconds(facts)
    if not 0 < seconds < DAY_SECONDS:
        return []
    hours = f"the server keeps its binlog for {seconds / 3600:.1f} h only"
    return [
        f"{hours}: an engine that stops for longer loses its position; set binlog_expire_logs_seconds to a day or more"
    ]


def retention_seconds(facts: ServerFacts) -> float:
    """Returns how long the server keeps its binlog; 0 for unlimited."""
    seconds = float(facts.variables.get("binlog_expire_logs_seconds") or 0)
    return seconds or float(facts.variables.get("expire_logs_days") or 0) * DAY_SECONDS
