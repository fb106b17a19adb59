"""Tests that every key of the files that Canal 1.1.7 ships is reported as imported, not imported, or without a meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.console.canal_import.convert import Imported, import_canal

# Each key of canal.properties. If the file of Canal has no value for a key, the value here has an effect.
SERVER = {
    "canal.ip": "127.0.0.1", "canal.register.ip": "10.0.0.1", "canal.port": "11111", "canal.metrics.pull.port": "11112",
    "canal.user": "canal", "canal.passwd": "E3619321C1A937C46A0D8BD1DAC39F93B27D4458",
    "canal.admin.manager": "127.0.0.1:8089", "canal.admin.port": "11110", "canal.admin.user": "admin", "canal.admin.passwd": "4ACFE3",
    "canal.admin.register.auto": "true", "canal.admin.register.cluster": "one", "canal.admin.register.name": "canal1",
    "canal.zkServers": "zk1:2181", "canal.zookeeper.flush.period": "1000", "canal.withoutNetty": "false",
    "canal.file.data.dir": "${canal.conf.dir}", "canal.file.flush.period": "1000",
    **{f"canal.instance.memory.{key}": value for key, value in {
        "buffer.size": "16384", "buffer.memunit": "1024", "batch.mode": "MEMSIZE", "rawEntry": "true"}.items()},
    **{f"canal.instance.detecting.{key}": value for key, value in {
        "enable": "false", "sql": "select 1", "interval.time": "3", "retry.threshold": "3", "heartbeatHaEnable": "false"}.items()},
    "canal.instance.transaction.size": "1024", "canal.instance.fallbackIntervalInSeconds": "60",
    **{f"canal.instance.network.{key}": "30" for key in ("receiveBufferSize", "sendBufferSize", "soTimeout")},
    **{f"canal.instance.filter.{key}": "false" for key in (
        "druid.ddl", "query.dcl", "query.dml", "query.ddl", "table.error", "rows", "transaction.entry", "dml.insert", "dml.update",
        "dml.delete")},
    "canal.instance.binlog.format": "ROW,STATEMENT,MIXED", "canal.instance.binlog.image": "FULL,MINIMAL,NOBLOB",
    "canal.instance.get.ddl.isolation": "false",
    **{f"canal.instance.parser.{key}": "256" for key in ("parallel", "parallelThreadSize", "parallelBufferSize")},
    **{f"canal.instance.tsdb.{key}": value for key, value in {
        "enable": "true", "dir": "../conf/example", "url": "jdbc:h2:../conf/example/h2", "dbUsername": "canal", "dbPassword": "canal",
        "snapshot.interval": "24", "snapshot.expire": "360", "spring.xml": "classpath:spring/tsdb/h2-tsdb.xml"}.items()},
    "canal.destinations": "example", "canal.conf.dir": "../conf", "canal.auto.scan": "true", "canal.auto.scan.interval": "5",
    "canal.auto.reset.latest.pos.mode": "false",
    **{f"canal.instance.global.{key}": value for key, value in {
        "mode": "spring", "lazy": "false", "manager.address": "${canal.admin.manager}",
        "spring.xml": "classpath:spring/file-instance.xml"}.items()},
    **{f"canal.aliyun.{key}": "key" for key in ("accessKey", "secretKey", "uid")},
    **{f"canal.mq.{key}": value for key, value in {
        "flatMessage": "true", "canalBatchSize": "50", "canalGetTimeout": "100", "accessChannel": "local", "database.hash": "true",
        "send.thread.size": "30", "build.thread.size": "8"}.items()},
    **{f"kafka.{key}": value for key, value in {
        "bootstrap.servers": "127.0.0.1:9092", "acks": "all", "compression.type": "none", "batch.size": "16384", "linger.ms": "1",
        "max.request.size": "1048576", "buffer.memory": "33554432", "max.in.flight.requests.per.connection": "1", "retries": "0",
        "kerberos.enable": "false", "kerberos.krb5.file": "krb5.conf", "kerberos.jaas.file": "jaas.conf",
        "sasl.jaas.config": 'ScramLoginModule required username=\\"alice\\" password=\\"secret\\";', "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_PLAINTEXT"}.items()},
    **{f"rocketmq.{key}": value for key, value in {
        "producer.group": "test", "enable.message.trace": "false", "customized.trace.topic": "traces", "namespace": "one",
        "namesrv.addr": "127.0.0.1:9876", "retry.times.when.send.failed": "0", "vip.channel.enabled": "false", "tag": "a"}.items()},
    **{f"rabbitmq.{key}": value for key, value in {
        "host": "127.0.0.1", "virtual.host": "/", "exchange": "changes", "username": "canal", "password": "secret", "queue": "all",
        "routingKey": "a", "deliveryMode": "topic"}.items()},
    **{f"pulsarmq.{key}": "one" for key in ("serverUrl", "roleToken", "topicTenantPrefix")},
}  # fmt: skip
INSTANCE = {
    "canal.instance.mysql.slaveId": "0",
    "canal.instance.gtidon": "false",
    **{f"canal.instance.master.{key}": value for key, value in {
        "address": "127.0.0.1:3306", "journal.name": "mysql-bin.000001", "position": "4", "timestamp": "1597025219000", "gtid": "u:1-5",
        "sslMode": "DISABLED", "tlsVersions": "TLSv1.2,TLSv1.3", "trustCertificateKeyStoreType": "JKS",
        "trustCertificateKeyStoreUrl": "file:a", "trustCertificateKeyStorePassword": "secret", "clientCertificateKeyStoreType": "JKS",
        "clientCertificateKeyStoreUrl": "file:b", "clientCertificateKeyStorePassword": "secret"}.items()},
    **{f"canal.instance.rds.{key}": "key" for key in ("accesskey", "secretkey", "instanceId")},
    **{f"canal.instance.standby.{key}": value for key, value in {
        "address": "127.0.0.2:3306", "journal.name": "mysql-bin.000001", "position": "4", "timestamp": "1597025219000",
        "gtid": "u:1-5"}.items()},
    **{f"canal.instance.tsdb.{key}": "true" for key in ("enable", "url", "dbUsername", "dbPassword")},
    "canal.instance.dbUsername": "canal", "canal.instance.dbPassword": "canal", "canal.instance.defaultDatabaseName": "shop",
    "canal.instance.connectionCharset": "UTF-8", "canal.instance.enableDruid": "false", "canal.instance.pwdPublicKey": "key",
    "canal.instance.filter.regex": ".*\\\\..*", "canal.instance.filter.black.regex": "mysql\\\\.slave_.*",
    "canal.instance.filter.field": "test1.t_product:id", "canal.instance.filter.black.field": "test1.t_product:image",
    **{f"canal.mq.{key}": value for key, value in {
        "topic": "example", "dynamicTopic": "shop", "partition": "1", "enableDynamicQueuePartition": "false", "partitionsNum": "3",
        "dynamicTopicPartitionNum": "shop:4", "partitionHash": "shop.orders:id"}.items()},
    "canal.instance.multi.stream.on": "false",
}  # fmt: skip


def imported(root: Path, server: dict[str, str], instance: dict[str, str], name: str = "example") -> Imported:
    folder = root / "canal" / "conf"
    (folder / name).mkdir(parents=True)
    for file, keys in ((folder / "canal.properties", server), (folder / name / "instance.properties", instance)):
        file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    return import_canal(folder, root / "conf")


def reported(found: Imported, key: str) -> set[str]:
    """Returns the kinds of findings that name the key: "taken", "left" or "no_meaning"."""
    named = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w]|\.\w)")
    kinds = ("taken", "left", "no_meaning")
    said = {
        kind
        for explained in found.findings.values()
        for kind in kinds
        if any(map(named.search, getattr(explained, kind)))
    }
    return said | {
        "taken" for explained in found.findings.values() if any(map(named.search, explained.secrets.values()))
    }


@pytest.mark.found
@pytest.mark.parametrize("mode", ["tcp", "kafka", "rabbitMQ", "rocketMQ", "pulsarMQ"])
def test_every_key_of_canals_own_files_is_reported(tmp_path: Path, mode: str) -> None:
    """Defect 20: `import-canal` dropped gtidon, memory.buffer.*, network.*, canal.mq.* in tcp mode and other keys without a message."""
    found = imported(tmp_path, SERVER | {"canal.serverMode": mode}, INSTANCE)
    silent = [key for key in {*SERVER, *INSTANCE, "canal.serverMode"} if not reported(found, key)]
    assert silent == []
    said = "\n".join(found.sentences())
    assert "not known to Sluice" not in said
    assert "secret" not in said.replace("secretKey", "").replace("secretkey", "")
    load_config(tmp_path / "conf")


@pytest.mark.found
@pytest.mark.parametrize(
    ("key", "usual", "other"),
    [
        ("canal.instance.fallbackIntervalInSeconds", "60", "600"),
        ("canal.instance.memory.buffer.size", "16384", "65536"),
        ("canal.instance.connectionCharset", "UTF-8", "GBK"),
        ("canal.instance.enableDruid", "false", "true"),
        ("canal.auto.reset.latest.pos.mode", "false", "true"),
        ("canal.instance.global.lazy", "false", "true"),
        ("canal.instance.master.tlsVersions", "TLSv1.2", "TLSv1.1"),
    ],
)
def test_a_key_that_says_what_canal_does_by_itself_has_no_meaning_and_another_value_is_not_carried_over(
    tmp_path: Path, key: str, usual: str, other: str
) -> None:
    """Test for defect 20: a key that is not imported is reported as without meaning only if its value is the usual one."""
    assert reported(imported(tmp_path / "usual", {}, {key: usual}), key) == {"no_meaning"}
    assert "left" in reported(imported(tmp_path / "other", {}, {key: other}), key)


@pytest.mark.found
def test_a_canal_that_serves_no_clients_gets_no_server(tmp_path: Path) -> None:
    """Defect 20: `canal.withoutNetty = true` was dropped, and Sluice opened a server that Canal did not have."""
    found = imported(tmp_path, {"canal.withoutNetty": "true", "canal.port": "11111"}, {"canal.mq.topic": "example"})
    assert not load_config(tmp_path / "conf").destinations["example"].canal_server.port
    assert reported(found, "canal.port") == reported(found, "canal.withoutNetty") == {"taken"}
    assert reported(found, "canal.mq.topic") == {"no_meaning"}


@pytest.mark.seeds
@pytest.mark.parametrize("mode", ["tcp", "kafka", "rabbitMQ", "rocketMQ", "pulsarMQ"])
@pytest.mark.parametrize("on", ["true", "false"])
def test_gtids_in_headers_are_carried_over(tmp_path: Path, mode: str, on: str) -> None:
    found = imported(tmp_path, {"canal.serverMode": mode}, {"canal.instance.gtidon": on, "canal.mq.topic": "example"})
    shop = load_config(tmp_path / "conf").destinations["example"]
    served = shop.canal_server if mode == "tcp" else shop.brokers[0]
    assert served.gtids == (on == "true")
    assert reported(found, "canal.instance.gtidon") == {"taken" if served.gtids else "no_meaning"}


# Names of all keys in the files that Canal 1.1.7 ships, also in their comments.
KEYS = Path(__file__).with_name("canal_keys.txt")
PAGE = Path(__file__).parents[3] / "docs" / "from-canal.md"
BROKERS = {"kafka": "kafka.", "rabbitMQ": "rabbitmq.", "rocketMQ": "rocketmq.", "pulsarMQ": "pulsarmq."}


@pytest.mark.seeds
@pytest.mark.parametrize("mode", ["tcp", *BROKERS])
def test_every_key_of_canals_templates_is_taken_refused_or_without_meaning(tmp_path: Path, mode: str) -> None:
    usual, shared = SERVER | INSTANCE | {"canal.serverMode": mode}, set(SERVER)
    values = {key: usual.get(key, "1") for key in KEYS.read_text().split()}
    values |= {"canal.destinations.expr": "example{1-1}", "canal.instance.destination": "example"}
    server = {key: value for key, value in values.items() if key in shared or not key.startswith("canal.instance.")}
    instance = {key: value for key, value in values.items() if key not in server}
    found = imported(tmp_path, server, instance, "example1")
    assert [key for key in values if not reported(found, key)] == []
    said = "\n".join(found.sentences())
    assert "not known to Sluice" not in said
    others = re.findall(r"no meaning in Sluice: (.*): the setting belongs to another broker", said)
    assert [key for line in others for key in line.split(", ") if key.startswith(BROKERS.get(mode, "-"))] == []


@pytest.mark.seeds
def test_page_has_the_counterpart_of_every_key() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert [key for key in KEYS.read_text().split() if key not in named] == []


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("keys", "shown", "kind"),
    [
        ({"canal.instance.filter.query.dml": "false"}, True, "taken"),
        ({"canal.instance.filter.query.dml": "true"}, False, "taken"),
        ({"canal.instance.filter.query.dml": "false", "canal.instance.filter.field": "a.b:c"}, False, "left"),
    ],
)
def test_sql_texts_are_shown_as_by_canal_unless_columns_are_filtered(
    tmp_path: Path, keys: dict[str, str], shown: bool, kind: str
) -> None:
    found = imported(tmp_path, {}, keys)
    assert load_config(tmp_path / "conf").destinations["example"].canal_server.rows_query == shown
    assert reported(found, "canal.instance.filter.query.dml") == {kind}


@pytest.mark.seeds
@pytest.mark.parametrize("mode", ["tcp", "kafka"])
@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("filter.query.ddl", "ddl"),
        ("filter.query.dcl", "other_statements"),
        ("filter.rows", "row_entries"),
        ("filter.transaction.entry", "transaction_entries"),
    ],
)
def test_kinds_of_entries_that_canal_leaves_out_are_left_out(tmp_path: Path, mode: str, key: str, setting: str) -> None:
    for value in ("true", "false"):
        root = tmp_path / value
        instance = {f"canal.instance.{key}": value, "canal.mq.topic": "example"}
        found = imported(root, {"canal.serverMode": mode}, instance)
        shop = load_config(root / "conf").destinations["example"]
        served = shop.canal_server if mode == "tcp" else shop.brokers[0]
        if hasattr(served, setting):
            assert getattr(served, setting) == (value == "false")
            assert reported(found, f"canal.instance.{key}") == {"taken"}
        else:
            assert reported(found, f"canal.instance.{key}") == {"left" if value == "true" else "no_meaning"}


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("mode", "value", "unit", "kind"),
    [
        ("tcp", "ITEMSIZE", "entries", "taken"),
        ("tcp", "itemsize", "entries", "taken"),
        ("tcp", "MEMSIZE", "kibibytes", "taken"),
        ("kafka", "ITEMSIZE", "kibibytes", "left"),
        ("kafka", "MEMSIZE", "kibibytes", "no_meaning"),
    ],
)
def test_what_a_fetch_size_counts_is_carried_over(tmp_path: Path, mode: str, value: str, unit: str, kind: str) -> None:
    found = imported(tmp_path, {"canal.serverMode": mode, "canal.instance.memory.batch.mode": value}, {})
    assert load_config(tmp_path / "conf").destinations["example"].canal_server.fetch_unit == unit
    assert reported(found, "canal.instance.memory.batch.mode") == {kind}


# The keys of application.yml and of the mapping files of rdb, which Canal 1.1.7's adapter ships.
ADAPTER = """
canal.conf.mode flatMessage zookeeperHosts syncBatchSize retries timeout accessKey secretKey canal.tcp.server.host
canal.tcp.zookeeper.hosts canal.tcp.batch.size canal.tcp.username canal.tcp.password kafka.bootstrap.servers rocketmq.namesrv.addr
rabbitmq.host srcDataSources canalAdapters instance groups groupId outerAdapters database table targetTable targetPk mapAll
targetColumns etlCondition commitBatch mirrorDb dataSourceKey outerAdapterKey concurrent
"""


@pytest.mark.seeds
def test_page_says_what_becomes_of_the_adapters_keys() -> None:
    section = PAGE.read_text().partition("### The adapter")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert [key for key in ADAPTER.split() if key not in named] == []
