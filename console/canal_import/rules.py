"""What each key of Canal's is in Sluice: into conf/, not needed, or not carried over with what to do. Pure.

Nothing is left out silently: what nobody looked up is said too.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from cdc_engine.config import DestinationConfig
from console.canal_import.brokers import brokers_of
from console.canal_import.cursors import Cursors
from console.canal_import.filters import not_captured
from console.canal_import.properties import Settings, Told
from console.canal_import.standby import sources_of

EXCLUDE = str(DestinationConfig.model_fields["exclude"].default)
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
CANAL_PORT, METRICS_PORT = 11111, 11112
ANYWHERE = "0.0.0.0"  # noqa: S104  what Canal listens on unless told otherwise
INSTANCE = "canal.instance."
HASH_VARIABLE = "CANAL_PASSWORD_HASH"
# What Sluice does by itself, or has no use for.
NOT_NEEDED = re.compile(
    r"canal\.(id|conf\.dir|file\.data\.dir|file\.flush\.period|zookeeper\.flush\.period|auto\.scan\.interval|withoutNetty|socketChannel"
    r"|register\.ip|admin\.(?!manager).*|instance\.global\..*|instance\.memory\..*|instance\.transaction\.size"
    r"|instance\.network\..*|instance\.filter\.(?:druid\.ddl|query\.dml)|instance\.binlog\..*|instance\.parser\..*|instance\.tsdb\.(enable|dir|dbUsername|dbPassword|spring\.xml|snapshot\..*)"
    r"|instance\.fallbackIntervalInSeconds|instance\.connectionCharset|instance\.defaultDatabaseName|instance\.multi\.stream\.on|mq\..*)"
    r"|(kafka|rocketmq|rabbitmq|pulsarmq)\..*"
)
# Keys whose word, where it is this one, has nothing in Sluice: (key, word that matters, what to do).
LEFT = (
    ("canal.instance.filter.query.dcl", "true", "statements other than DDL are shown to consumers as QUERY: skip them there"),
    ("canal.instance.filter.query.ddl", "true", "DDL is shown to consumers: skip it there; the lake follows it by `schema_changes`"),
    ("canal.instance.filter.rows", "true", "row events are always read: a destination without them has no use"),
    ("canal.instance.filter.table.error", "true", "a table that cannot be read stops by name, the others go on: see docs/operations.md"),
    ("canal.instance.filter.transaction.entry", "true", "consumers are shown where transactions begin and end: skip these entries there"),
    ("canal.instance.filter.dml.insert", "true", "all changes are read: skip inserts in the consumer"),
    ("canal.instance.filter.dml.update", "true", "all changes are read: skip updates in the consumer"),
    ("canal.instance.filter.dml.delete", "true", "all changes are read: `deletes: soft` keeps rows in the lake"),
    ("canal.auto.reset.latest.pos.mode", "true", "a lost position stops the engine as POSITION_LOST; `snapshot: when_needed` reads anew"),
    ("canal.instance.enableDruid", "true", "the password is encrypted there: put the plain one into the environment variable"),
)  # fmt: skip
SET = (
    ("canal.instance.standby.journal.name", "a standby goes on after what was read of the master: it has no place of its own"),
    ("canal.instance.rds.instanceId", "binlogs are not fetched from an object store: keep them on the server for long enough"),
    ("canal.admin.manager", "what canal-admin keeps in its database is not in this folder: export each instance's file and import again"),
    ("canal.instance.master.trustCertificateKeyStoreUrl", "a Java key store: convert it to PEM and name it in source.tls.ca_file"),
    ("canal.instance.master.clientCertificateKeyStoreUrl", "a Java key store: convert it to PEM, source.tls.certificate_file and key_file"),
    ("canal.instance.tsdb.url", "the schema history begins anew, from the source; `schema_history_url` keeps it in a database"),
)  # fmt: skip


def destination_name(name: str) -> str:
    """As a file of conf/destinations may be called."""
    found = re.sub(r"[^a-z0-9_]", "_", name.lower())
    return found if NAME.fullmatch(found) else f"d_{found}"[:63]


def server_of(settings: Settings, findings: Told) -> dict[str, Any]:
    """conf/sluice.yaml."""
    record: dict[str, Any] = {}
    hosts = settings.get("canal.zkServers")
    xml = settings.get("canal.instance.global.spring.xml")
    if hosts and "default-instance" in xml:
        first, *others = hosts.split(";")
        record["meta"] = {"kind": "zookeeper", "hosts": first}
        findings.taken.append(
            f"canal.zkServers: ledger, leases and the cursors of Canal's clients are in ZooKeeper {first}"
        )
        if others:
            findings.left.append(
                f"canal.zkServers names a second cluster, {';'.join(others)}: Sluice keeps to the first"
            )
    elif hosts:
        findings.left.append(
            f"canal.zkServers {hosts} is not used by {xml or 'file-instance.xml'}: the ledger is in a file, or there by `meta.kind`"
        )
    if "memory-instance" in xml:
        findings.left.append(
            "memory-instance.xml: Canal forgot its position at each restart; Sluice keeps it in a file"
        )
    port = settings.number("canal.metrics.pull.port", METRICS_PORT)
    if port > 0 and "canal.metrics.pull.port" in _given(settings):
        record["metrics"] = {"port": port}
        findings.taken.append(
            f"canal.metrics.pull.port: Prometheus is answered at port {port}, on the loopback; `metrics.host` says otherwise"
        )
    return record


def _given(settings: Settings) -> set[str]:
    return {key for file in settings.files for key in file if file[key]}


def destination_of(name: str, settings: Settings, cursors: Cursors, findings: Told) -> dict[str, Any]:
    """One file of conf/destinations."""
    record = sources_of(settings, _source(name, settings, findings), findings.taken, findings.left)
    record["include"] = settings.get("canal.instance.filter.regex", r".*\..*")
    black = settings.get("canal.instance.filter.black.regex")
    record["exclude"] = ",".join([EXCLUDE, *([black] if black else [])])
    findings.taken.append(
        f"filter.regex and filter.black.regex; the server's own schemas stay out of the lake ({EXCLUDE})"
    )
    findings.left += _cut_filters(cursors, record["include"])
    for key, own in (("filter.field", "column_include"), ("filter.black.field", "column_exclude")):
        if columns := settings.get(INSTANCE + key):
            record[own] = columns
    start = _start(settings, cursors, findings)
    if start:
        record["start"] = start
    brokers = brokers_of(name, settings, findings)
    if brokers:  # Canal's own server is off then
        record["brokers"] = brokers
    else:
        record["canal_server"] = _canal_server(settings, findings)
    if settings.get("canal.instance.get.ddl.isolation").lower() == "true":
        record["batch"] = {"ddl_isolation": True}
        findings.taken.append("canal.instance.get.ddl.isolation: a statement that changes tables is a batch of its own")
    record["snapshot"] = "when_stopped"
    for key, word, what in LEFT:
        if settings.get(key).lower() == word:
            findings.left.append(f"{key}={word}: {what}")
    findings.left += [f"{key}: {what}" for key, what in SET if settings.get(key)]
    if settings.get("canal.instance.memory.batch.mode", "MEMSIZE").upper() == "ITEMSIZE":
        findings.left.append("canal.instance.memory.batch.mode=ITEMSIZE: a fetch size is 1024 bytes a unit, as MEMSIZE")
    return record


def _cut_filters(cursors: Cursors, include: str) -> list[str]:
    found = ((client, not_captured(client.filter, include, EXCLUDE)) for client in cursors.clients)
    return [
        f"the filter {client.filter} of client {client.client_id}: in Canal it stood in place of filter.regex, here it only narrows "
        f"`include`, which is {include}: tables of {', '.join(outside)} that are not in that do not come; add them to `include`"
        for client, outside in found
        if outside
    ]


def _source(name: str, settings: Settings, findings: Told) -> dict[str, Any]:
    """Of the master and its standby, but for the address."""
    source: dict[str, Any] = {"user": settings.get("canal.instance.dbUsername", "canal")}
    if settings.get("canal.instance.dbPassword"):
        source["password_env"] = _variable(name, "PASSWORD")
        findings.secrets[source["password_env"]] = f"canal.instance.dbPassword of {name}"
    replica = settings.number("canal.instance.mysql.slaveId")
    if replica:
        source["server_id"] = replica
        findings.taken.append(
            f"slaveId {replica}: stop Canal before Sluice starts, the source takes one replica of a number"
        )
    if mode := settings.get("canal.instance.master.sslMode"):
        source["tls"] = {"mode": mode.upper()}
    settings.get("canal.instance.master.tlsVersions")
    settings.get("canal.instance.pwdPublicKey")
    return source


def _start(settings: Settings, cursors: Cursors, findings: Told) -> dict[str, Any]:
    """A cursor wins over what the file says, as in Canal."""
    file, gtid = settings.get("canal.instance.master.journal.name"), settings.get("canal.instance.master.gtid")
    offset, time_ms = (
        settings.number("canal.instance.master.position"),
        settings.number("canal.instance.master.timestamp"),
    )
    by_gtid = settings.flag("canal.instance.gtidon")
    if cursors.begin is not None:
        left = cursors.begin
        findings.taken.append(
            f"the cursor {left.file}:{left.offset} of {cursors.where}, the oldest of {len(cursors.clients)}"
        )
        if by_gtid and left.gtid_set:
            return {"gtid_set": left.gtid_set}
        if left.time_ms:
            return {"time": _moment(left.time_ms)}
        # amid a transaction: its file begins before it
        return {"file": left.file}
    start: dict[str, Any] = {}
    if by_gtid and gtid:
        start = {"gtid_set": gtid}
    elif file:
        start = {"file": file, **({"offset": offset} if offset > 4 else {})}
    elif time_ms > 0:
        start = {"time": _moment(time_ms)}
    _say_without_cursor(bool(start), cursors.where, findings)
    return start


def _say_without_cursor(placed: bool, looked_in: str, findings: Told) -> None:
    """`placed`: the properties name a place."""
    if placed:
        findings.taken.append(f"where to begin, as the properties say: no client's cursor was found in {looked_in}")
        return
    findings.left.append(
        f"where Canal stood: no client's cursor was found in {looked_in}, and canal.instance.master.journal.name, timestamp and gtid say "
        "nothing: the destination begins at the LATEST position of its first start, what was changed before is not read. Where Canal has "
        "run, import from the machine that has its data (canal.file.data.dir, canal.zkServers), or say `start` in the file that was written"
    )


def _moment(milliseconds: int) -> str:
    """The whole second before: what committed in it comes again."""
    return dt.datetime.fromtimestamp(milliseconds // 1000, dt.UTC).isoformat()


def _canal_server(settings: Settings, findings: Told) -> dict[str, Any]:
    server: dict[str, Any] = {"port": settings.number("canal.port", CANAL_PORT)}
    password = settings.get("canal.passwd")
    user, address = settings.get("canal.user"), settings.get("canal.ip", ANYWHERE)
    if user and password:
        server |= {"user": user, "password_hash_env": HASH_VARIABLE, "host": address}
        findings.secrets[HASH_VARIABLE] = "canal.passwd, the hash as it is"
    elif address != "127.0.0.1":
        findings.left.append(
            f"canal.ip {address} without canal.user and canal.passwd: only the loopback is served until there is a password"
        )
    findings.left.append(
        "TIMESTAMP values are shown in UTC, Canal takes its machine's zone: canal_server.time_zone says another"
    )
    return server


def _variable(name: str, what: str) -> str:
    return f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_{what}"


def not_looked_at(settings: Settings) -> list[str]:
    """Keys that nothing here knows."""
    return [key for key in settings.unasked() if not NOT_NEEDED.fullmatch(key)]
