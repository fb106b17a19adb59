"""Reports the keys of Canal's files that no other module has reported. `convert` calls this module.

A key that no module has reported is either not converted, or has no meaning in Sluice. The report mentions every key, so that no key is
dropped silently. The report contains no values, because some values are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.console.canal_import.properties import ImportReport, Settings

NO_ADMIN = "Sluice has no admin server: `sluice instance` lists, stops and restarts destinations"
SAME = "Sluice always behaves as with this value"
OFF = ("false",)
# Keys that are never converted: (pattern, what to do instead).
LEFT = (
    (
        r"canal\.admin\.manager",
        "the settings that canal-admin keeps in its database are not in this folder: export each instance's file and import again",
    ),
    (r"canal\.instance\.tsdb\.url", "the schema history begins again, from the source; `meta.kind: sql` keeps it in a database"),
    (
        r"canal\.instance\.master\.trustCertificateKeyStore.*",
        "a Java key store: convert it to PEM, name it in source.tls.ca_file, and set source.tls.mode to VERIFY_CA",
    ),
    (
        r"canal\.instance\.master\.clientCertificateKeyStore.*",
        "a Java key store: convert it to PEM files, and name them in source.tls.certificate_file and source.tls.key_file",
    ),
    (r"canal\.instance\.standby\.(?!address).*", "this setting needs a standby source: set canal.instance.standby.address"),
    (
        r"canal\.instance\.(master|standby)\d+\..*",
        ("several masters in one instance: create a destination for each master, and a group of these "
        "destinations with `members`"),
    ),
    (
        r"canal\.instance\.rds\..*|canal\.aliyun\..*",
        ("binlogs are not downloaded from Alibaba's store: name an `archive`, and in `archive_fetch` a "
        "command that fetches a purged file"),
    ),
    (r"canal\.register\.ip", "the address in ZooKeeper is canal_server.host, or the name of this host if canal_server.host is 0.0.0.0"),
)  # fmt: skip
# Keys that are not converted: (pattern, values in lower case, what to do instead). If a key has one of these values, nothing needs to be
# done, because Sluice always behaves as Canal does with this value.
LEFT_UNLESS = (
    (r"canal\.instance\.memory\.buffer\.(size|memunit)", ("16384", "1024"), "set ring.bytes_max, which limits the memory for events"),
    (r"canal\.instance\.memory\.batch\.mode", ("memsize",), "a broker's batch is bounded by `batch_bytes_max`"),
    (
        r"canal\.instance\.fallbackIntervalInSeconds", ("60",),
        "a failover continues by GTID and repeats nothing; with `failover: by_time` set `failover_back_seconds` to this value",
    ),
    (
        r"canal\.instance\.filter\.query\.dml", ("true",),
        "Sluice sends no SQL texts of statements to a broker, even if the source logs them (binlog_rows_query_log_events)",
    ),
    (
        r"canal\.instance\.filter\.table\.error", OFF,
        "only a table that Sluice cannot read stops, and other tables continue: see docs/reference/states.md",
    ),
    (
        r"canal\.instance\.filter\.transaction\.entry", OFF,
        ("a broker's packets have the beginnings and ends of transactions: skip these entries in the "
        "consumer; flat messages have none"),
    ),
    (r"canal\.instance\.filter\.dml\.insert", OFF, "all changes are read: skip inserts in the consumer"),
    (r"canal\.instance\.filter\.dml\.update", OFF, "all changes are read: skip updates in the consumer"),
    (r"canal\.instance\.filter\.dml\.delete", OFF, "all changes are read: `deletes: soft` keeps deleted rows in the lake"),
    (
        r"canal\.instance\.tsdb\.spring\.xml", ("classpath:spring/tsdb/h2-tsdb.xml",),
        "the schema history is in a file; `meta.kind: sql` keeps it in a database",
    ),
    (
        r"canal\.instance\.connectionCharset(Number)?", ("utf-8", "utf8", "utf8mb4", "33"),
        "Sluice decodes text with the charset of the column; `charsets` of a table sets another charset",
    ),
    (
        r"canal\.instance\.enableDruid", OFF,
        "the password in this file is encrypted: put the plain password into the environment variable that this report names",
    ),
    (r"canal\.instance\.multi\.stream\.on", OFF, "Sluice cannot request a stream of PolarDB-X by its name"),
    (
        r"canal\.instance\.master\.tlsVersions", ("tlsv1.2,tlsv1.3", "tlsv1.2", "tlsv1.3"),
        "Sluice uses TLS 1.2 and later versions",
    ),
    (
        r"canal\.auto\.reset\.latest\.pos\.mode", OFF,
        "a lost position stops the engine as POSITION_LOST; `snapshot: when_needed` reads the tables again",
    ),
    (r"canal\.instance\.(.*\.)?mode", ("spring",), f"each destination is a file of conf/destinations; {NO_ADMIN}"),
    (r"canal\.instance\.(.*\.)?lazy", OFF, "a destination begins with its engine, not with its first client"),
    (r"canal\.instance\..*\.spring\.xml", (), "a Spring file of a single instance: in Sluice, all destinations use `meta` in sluice.yaml"),
    (r"canal\.instance\.get\.ddl\.isolation", OFF, "set batch.ddl_isolation"),
)  # fmt: skip
# Keys without a meaning in Sluice: (pattern, why).
NO_MEANING = (
    (r"canal\.instance\.memory\.rawEntry", "Sluice builds entries when a client requests them"),
    (r"canal\.instance\.transaction\.size", "Sluice does not divide a transaction: a large transaction is stored on disk"),
    (r"canal\.instance\.detecting\..*", "the instance has no standby server that could take over"),
    (r"canal\.instance\.network\..*", "Sluice chooses buffers and timeouts of the connection to the source itself"),
    (r"canal\.instance\.parser\..*", "compiled kernels decode the rows, and no setting changes how"),
    (r"canal\.instance\.filter\.druid\.ddl", "Sluice has a parser of its own for statements"),
    (r"canal\.instance\.binlog\.(format|image)", "`sluice check` lists the settings that the source lacks"),
    (
        r"canal\.instance\.tsdb\.(enable|dir|dbUsername|dbPassword|snapshot\..*)",
        "Sluice always stores the schema history, with the position of each schema, and makes no snapshots of it",
    ),
    (r"canal\.instance\.destination", "Canal sets it to the name of the instance's folder, which is the destination's name"),
    (r"canal\.instance\.defaultDatabaseName", "names in `include` contain the database"),
    (r"canal\.instance\.pwdPublicKey", "the password is in an environment variable, not encrypted"),
    (r"canal\.admin\..*|canal\.instance\..*\.manager\.address", NO_ADMIN),
    (
        r"canal\.(id|socketChannel|withoutNetty|(file|zookeeper)\.flush\.period|auto\.scan\.interval)",
        "Sluice has fixed values: it stores cursors within a second and looks at the files of conf/ every few seconds",
    ),
    (r"canal\.mq\.(canalGetTimeout|(send|build)\.thread\.size)", "a batch is sent as soon as there are changes"),
    (r"canal\.mq\.(retries|transaction)", "a batch is sent again until the broker has it"),
    (r"canal\.mq\.accessChannel|rocketmq\..*trace.*|rocketmq\.vip.*", "messages are not traced, and go to the broker's ordinary port"),
    (r"rocketmq\.client\..*", "Sluice does not use RocketMQ's Java client, which has this setting"),
    (r"(canal\.mq|kafka|rocketmq|rabbitmq|pulsarmq)\..*", "the setting belongs to another broker than the one in canal.serverMode"),
)  # fmt: skip


def remaining(settings: Settings, keys: Iterable[str], report: ImportReport) -> None:
    """Adds to the report those of `keys` that the report does not mention yet. Keys with the same reason get one common line."""
    without: dict[str, list[str]] = {}
    left: dict[str, list[str]] = {}
    for key in sorted(keys):
        if not report.names(key):
            why, what_to_do = _meaning(key, settings.unchecked(key))
            (left if what_to_do else without).setdefault(what_to_do or why, []).append(key)
    report.left += [f"{', '.join(found)}: {why}" for why, found in left.items()]
    report.no_meaning += [f"{', '.join(found)}: {why}" for why, found in without.items()]


def _meaning(key: str, value: str) -> tuple[str, str]:
    """Returns (why the key has no meaning in Sluice, ""), or ("", what to do) if the key is not converted."""
    for pattern, what in LEFT:
        if re.fullmatch(pattern, key):
            return "", what
    for pattern, same, what in LEFT_UNLESS:
        if re.fullmatch(pattern, key):
            return (SAME, "") if value.lower() in same else ("", what)
    for pattern, why in NO_MEANING:
        if re.fullmatch(pattern, key):
            return why, ""
    return "", "not known to Sluice"
