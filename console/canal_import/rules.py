"""Converts Canal's keys to settings in conf/, and reports each key as converted, not converted or not needed.

The module `keys` reports those of Canal's keys that no rule in this module mentions, so that no key is dropped silently.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from sluice.cdc_engine.config import DestinationConfig
from sluice.console.canal_import.brokers import brokers_of
from sluice.console.canal_import.cursors import Cursors
from sluice.console.canal_import.filters import not_captured
from sluice.console.canal_import.properties import GTID_ON, SHOWN_KINDS, ImportReport, Settings, left_out
from sluice.console.canal_import.standby import sources_of

EXCLUDE = str(DestinationConfig.model_fields["exclude"].default)
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
CANAL_PORT, METRICS_PORT = 11111, 11112
ANYWHERE = "0.0.0.0"  # noqa: S104  the address on which Canal listens by default
INSTANCE = "canal.instance."
XML = "canal.instance.global.spring.xml"
METRICS = "canal.metrics.pull.port"
POSITION_KEYS, STANDBY_POSITION_KEYS = (
    (f"{of}journal.name", f"{of}position", f"{of}timestamp", f"{of}gtid")
    for of in (f"{INSTANCE}master.", f"{INSTANCE}standby.")
)
NO_SERVER = "canal.withoutNetty"
SERVER = ("canal.port", "canal.ip", "canal.user", "canal.passwd")
TEXTS_OFF = f"{INSTANCE}filter.query.dml"
BATCH_MODE, MEMSIZE = f"{INSTANCE}memory.batch.mode", "MEMSIZE"
HASH_VARIABLE = "CANAL_PASSWORD_HASH"


def destination_name(name: str) -> str:
    """Converts the name of a Canal instance to a valid name of a destination: in lower case, with "_" for each character that is not
    allowed. If the name is still not valid, for example because it begins with a digit, puts "d_" before it, and shortens it to 63
    characters.
    """
    found = re.sub(r"[^a-z0-9_]", "_", name.lower())
    return found if NAME.fullmatch(found) else f"d_{found}"[:63]


def server_of(settings: Settings, findings: ImportReport) -> dict[str, Any]:
    """Returns the settings for conf/sluice.yaml, converted from canal.properties. Adds Canal's keys to the report."""
    record: dict[str, Any] = {}
    hosts = settings.get("canal.zkServers")
    xml = settings.get(XML)
    if hosts and "default-instance" in xml:
        first, *others = hosts.split(";")
        record["meta"] = {"kind": "zookeeper", "hosts": first}
        findings.taken.append(
            f"{XML}, canal.zkServers: ledger, leases and the cursors of Canal's clients are in ZooKeeper {first}"
        )
        if others:
            findings.left.append(
                f"canal.zkServers names a second cluster, {';'.join(others)}: Sluice uses only the first cluster"
            )
    elif hosts:
        findings.left.append(
            f"canal.zkServers {hosts} is not used by {xml or 'file-instance.xml'}: the ledger is in a file; "
            "set `meta.kind: zookeeper` to store the ledger in ZooKeeper"
        )
    if "memory-instance" in xml:
        findings.left.append(
            f"{XML} memory-instance.xml: Canal forgot its position at each restart; Sluice keeps its position in a file"
        )
    elif "file-instance" in xml:
        findings.taken.append(f"{XML} file-instance.xml: the ledger is in a file")
    elif xml and "default-instance" not in xml:
        findings.left.append(
            f"{XML} {xml}: Sluice reads no Spring file, and the ledger is in a file; configure the other objects of the Spring "
            "file (handlers, groups) by hand"
        )
    elif xml and not hosts:
        findings.left.append(f"{XML} {xml} without canal.zkServers: the ledger is in a file")
    if settings.given(METRICS):
        port = max(0, settings.number(METRICS, METRICS_PORT))
        record |= {"metrics": {"port": port}} if port else {}
        findings.taken.append(
            (
                f"{METRICS}: the Prometheus endpoint listens on port {port} of the loopback address; set "
                "`metrics.host` to use another address"
            )
            if port
            else f"{METRICS}: the Prometheus endpoint is off, so `metrics` is not set"
        )
    return record


def destination_of(name: str, settings: Settings, cursors: Cursors, findings: ImportReport) -> dict[str, Any]:
    """Returns the settings for the destination's file in conf/destinations, converted from the settings and cursors of a Canal instance.
    Adds Canal's keys to the report.
    """
    record = sources_of(settings, _source(name, settings, findings), findings.taken, findings.left)
    record["include"] = settings.get("canal.instance.filter.regex", r".*\..*")
    black = settings.get("canal.instance.filter.black.regex")
    record["exclude"] = ",".join([EXCLUDE, *([black] if black else [])])
    findings.taken.append(
        f"{INSTANCE}filter.regex, {INSTANCE}filter.black.regex: converted to `include` and `exclude`; `exclude` also leaves "
        f"out the system schemas of the server ({EXCLUDE})"
    )
    findings.left += _narrowed_filters(cursors, record["include"])
    for key, own in (("filter.field", "column_include"), ("filter.black.field", "column_exclude")):
        if columns := settings.get(INSTANCE + key):
            record[own] = columns
            findings.taken.append(f"{INSTANCE}{key}: converted to `{own}`")
    start = _start(settings, cursors, findings)
    if start:
        record["start"] = start
    _start_standby(record, settings, cursors, findings)
    brokers = brokers_of(name, settings, findings)
    # With brokers, `canal_server` is not set, because Canal does not serve clients while it sends to a broker.
    if brokers:
        record["brokers"] = brokers
    elif settings.flag(NO_SERVER):
        keys = settings.given(NO_SERVER, *SERVER)
        findings.taken.append(f"{keys}: Canal served no clients, so canal_server is not set")
    else:
        record["canal_server"] = _canal_server(settings, findings)
    if settings.get("canal.instance.get.ddl.isolation").lower() == "true":
        record["batch"] = {"ddl_isolation": True}
        findings.taken.append(
            "canal.instance.get.ddl.isolation: a statement that changes tables becomes a separate batch"
        )
    record["snapshot"] = "when_stopped"
    return record


def _narrowed_filters(cursors: Cursors, include: str) -> list[str]:
    found = ((client, not_captured(client.filter, include, EXCLUDE)) for client in cursors.clients)
    return [
        f"the filter {client.filter} of client {client.client_id} replaced filter.regex in Canal. Sluice delivers only "
        f"tables that `include` ({include}) matches, so tables that match {', '.join(excluded)} but not `include` are not "
        "delivered; add these tables to `include`"
        for client, excluded in found
        if excluded
    ]


def _source(name: str, settings: Settings, findings: ImportReport) -> dict[str, Any]:
    """Returns the settings of `source` that are the same for Canal's master and standby: all settings except the address."""
    source: dict[str, Any] = {"user": settings.get("canal.instance.dbUsername", "canal")}
    if keys := settings.given(f"{INSTANCE}master.address", f"{INSTANCE}dbUsername", f"{INSTANCE}master.sslMode"):
        findings.taken.append(f"{keys}: converted to `source`")
    if settings.unchecked("canal.instance.dbPassword"):
        variable = _variable(name, "PASSWORD")
        source["password"] = f"${variable}"
        findings.secrets[variable] = f"canal.instance.dbPassword of {name}"
    replica = settings.number("canal.instance.mysql.slaveId")
    if replica:
        source["server_id"] = replica
        findings.taken.append(
            f"{INSTANCE}mysql.slaveId {replica}: stop Canal before Sluice starts, because the source accepts only one replica with this id"
        )
    elif keys := settings.given(f"{INSTANCE}mysql.slaveId"):
        findings.taken.append(
            f"{keys} is 0: the replica id is derived from the installation and the destination's name"
        )
    if mode := settings.get("canal.instance.master.sslMode"):
        source["tls"] = {"mode": mode.upper()}
    return source


def _start(settings: Settings, cursors: Cursors, findings: ImportReport) -> dict[str, Any]:
    """Returns the setting `start` of the destination. As in Canal, the oldest cursor of the clients takes precedence over the position in
    the properties. Returns {} if Canal has neither: the destination then begins at the latest position.
    """
    by_gtid = settings.flag(GTID_ON)
    _say_gtids(by_gtid, settings, findings)
    if cursors.begin is not None:
        left = cursors.begin
        if keys := settings.given(*POSITION_KEYS):
            findings.no_meaning.append(f"{keys}: the cursor of Canal's clients is used instead, as in Canal")
        findings.taken.append(
            f"`start` is derived from the cursor {left.file}:{left.offset} in {cursors.where}, the oldest cursor of "
            f"{len(cursors.clients)} clients"
        )
        if by_gtid and left.gtid_set:
            return {"gtid_set": left.gtid_set}
        if left.time_ms:
            return {"time": _moment(left.time_ms)}
        # The cursor has only a file and an offset. The destination starts at the beginning of the file, because the offset may be inside a
        # transaction.
        return {"file": left.file}
    start, used = configured_start(settings, POSITION_KEYS)
    _say_without_cursor(settings.given(*used), cursors.where, findings)
    _say_unused(settings, POSITION_KEYS, used, findings)
    return start


def _start_standby(record: dict[str, Any], settings: Settings, cursors: Cursors, findings: ImportReport) -> None:
    """Sets `start` of the standby source in `record`. The engine uses this `start` if the engine has no cursor and reads the standby source
    first. Sets nothing if there is no standby source, if the properties have no position for the standby source, or if a client of Canal
    has a cursor.
    """
    keys = settings.given(*STANDBY_POSITION_KEYS)
    if "sources" not in record or not keys:
        return
    if cursors.begin is not None:
        findings.no_meaning.append(f"{keys}: the cursor of Canal's clients is used instead, as in Canal")
        return
    start, used = configured_start(settings, STANDBY_POSITION_KEYS)
    _say_unused(settings, STANDBY_POSITION_KEYS, used, findings)
    if start:
        record["sources"][1]["start"] = start
        findings.taken.append(
            f"{settings.given(*used)}: converted to `start` of the standby source, which Sluice uses if it reads the standby source first"
        )


def configured_start(settings: Settings, keys: tuple[str, str, str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the setting `start` for the position that the properties configure, and the keys that determine this position. Returns {} and
    no keys if the properties configure no position. `keys` are the keys of the file, offset, time and GTID set, in this order.
    """
    file, gtid = settings.get(keys[0]), settings.get(keys[3])
    offset, time_ms = settings.number(keys[1]), settings.number(keys[2])
    if settings.flag(GTID_ON) and gtid:
        return {"gtid_set": gtid}, keys[3:]
    if file:
        return {"file": file, **({"offset": offset} if offset > 4 else {})}, keys[:2]
    return ({"time": _moment(time_ms)}, keys[2:3]) if time_ms > 0 else ({}, ())


def _say_unused(settings: Settings, keys: tuple[str, ...], used: tuple[str, ...], findings: ImportReport) -> None:
    if others := settings.given(*(key for key in keys if key not in used)):
        findings.left.append(
            f"{others}: not used, because Sluice begins at the GTID set (with gtidon) if there is one, otherwise at the "
            "file and position, otherwise at the time"
        )


def _say_gtids(on: bool, settings: Settings, findings: ImportReport) -> None:
    if on:
        findings.taken.append(
            f"{GTID_ON}: Sluice continues by GTID if the source has GTIDs, and `gtids` makes consumers get the GTIDs"
        )
    elif settings.given(GTID_ON):
        findings.no_meaning.append(f"{GTID_ON}: Sluice always continues by GTID if the source has GTIDs")


def _say_without_cursor(used: str, looked_in: str, findings: ImportReport) -> None:
    """Reports where the destination starts if no client has a cursor. `used` are the keys that determine the start, or "" if no key does.
    `looked_in` is where cursors were searched.
    """
    if used:
        findings.taken.append(
            f"{used}: the destination begins at this position, because no client's cursor was found in {looked_in}"
        )
        return
    findings.left.append(
        f"the position of Canal: no client's cursor was found in {looked_in}, and "
        "canal.instance.master.journal.name, timestamp and gtid are empty: the destination begins at the "
        "LATEST position at its first start, and Sluice does not read earlier changes. If Canal has run, "
        "import on the machine with Canal's data (canal.file.data.dir, canal.zkServers), or set `start` in "
        "the written file"
    )


def _moment(milliseconds: int) -> str:
    """Converts a time in ms since 1970 to ISO form. Rounds the time down to the second, so that no change after the time is skipped.
    Changes before the time, but in the same second, are read again.
    """
    return dt.datetime.fromtimestamp(milliseconds // 1000, dt.UTC).isoformat()


def _canal_server(settings: Settings, findings: ImportReport) -> dict[str, Any]:
    server: dict[str, Any] = {"port": settings.number("canal.port", CANAL_PORT), "decimals": "canal"}
    if settings.flag(GTID_ON):
        server["gtids"] = True
    kinds = {**SHOWN_KINDS, "canal.instance.filter.transaction.entry": "transaction_entries"}
    server |= left_out(settings, findings, kinds)
    _show_texts(settings, server, findings)
    if (unit := settings.get(BATCH_MODE, MEMSIZE).upper()) != MEMSIZE:
        server["fetch_unit"] = "entries"
    if settings.given(BATCH_MODE):
        findings.taken.append(f"{BATCH_MODE} {unit}: converted to `fetch_unit`, the unit of a client's fetch size")
    if keys := settings.given("canal.serverMode", "canal.port", "canal.ip", "canal.user"):
        findings.taken.append(f"{keys}: converted to `canal_server`")
    password = settings.unchecked("canal.passwd")
    user, address = settings.get("canal.user"), settings.get("canal.ip", ANYWHERE)
    if user and password:
        server |= {"user": user, "password_hash": f"${HASH_VARIABLE}", "host": address}
        findings.secrets[HASH_VARIABLE] = "canal.passwd, the hash unchanged"
    elif address != "127.0.0.1":
        findings.left.append(
            f"canal.ip {address} without canal.user and canal.passwd: Sluice listens only on the loopback address until "
            "a user and a password are set"
        )
    findings.left.append(
        "Sluice sends TIMESTAMP values to clients in UTC, and Canal sends them in the time zone of Canal's machine: "
        "set canal_server.time_zone to use another zone"
    )
    return server


def _show_texts(settings: Settings, server: dict[str, Any], findings: ImportReport) -> None:
    """Sets `rows_query` in `server` if Canal sends the SQL texts of statements to clients, which is Canal's default. With `rows_query`,
    Sluice sends these texts too. Does not set `rows_query` if Canal hides columns from clients (filter.field), because the texts contain
    the values of all columns. Adds Canal's keys to the report.
    """
    if settings.given(f"{INSTANCE}filter.field", f"{INSTANCE}filter.black.field"):
        findings.left.append(
            f"{TEXTS_OFF}: clients get no SQL texts of statements, because the texts contain values of columns that filter.field hides"
        )
        return
    if not settings.flag(TEXTS_OFF):
        server["rows_query"] = True
    if keys := settings.given(TEXTS_OFF):
        findings.taken.append(
            f"{keys}: converted to `rows_query`, which says whether clients get the SQL texts of statements that the source logs"
        )


def _variable(name: str, what: str) -> str:
    return f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_{what}"
