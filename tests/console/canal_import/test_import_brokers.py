"""Tests the conversion of Canal's broker modes to `brokers` of conf/: Sluice and the broker's client accept the result, and it contains no
secret.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.brokers import rabbitmq
from sluice.cdc_engine.brokers.kafka import KafkaPublisher, settings_of
from sluice.cdc_engine.brokers.pulsar import PulsarConfig
from sluice.cdc_engine.brokers.settings import KafkaConfig, RabbitConfig, RocketConfig
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.consumers.sending import rules_of
from sluice.cdc_engine.meta.left_consumers import FILE_NAME
from sluice.console.canal_import.convert import import_canal
from tests.console.canal_import.fix_canal import canal_folder, meta

SERVER = r"""
canal.serverMode = kafka
canal.mq.canalBatchSize = 100
canal.mq.database.hash = false
kafka.bootstrap.servers = kafka1:9092,kafka2:9092
kafka.acks = 1
kafka.compression.type = lz4
kafka.batch.size = 16384
kafka.linger.ms = 1
kafka.max.request.size = 2097152
kafka.buffer.memory = 33554432
kafka.max.in.flight.requests.per.connection = 1
kafka.retries = 0
kafka.kerberos.enable = false
kafka.kerberos.krb5.file = ../conf/kerberos/krb5.conf
kafka.interceptor.classes = com.example.Spy
kafka.security.protocol = SASL_PLAINTEXT
kafka.sasl.mechanism = PLAIN
kafka.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="open-sesame";
"""
INSTANCE = r"""
canal.mq.topic = everything
canal.mq.dynamicTopic = one:shop\\.orders,.*\\..*
canal.mq.partitionsNum = 3
canal.mq.partitionHash = shop.orders:id^region,.*\\..*:$pk$
canal.mq.dynamicTopicPartitionNum = one:6
"""


def test_broker_of_canal_is_one_of_sluice(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, SERVER, INSTANCE)
    (folder / "example" / "meta.dat").write_text(meta((1001, 20154, 1597025219500)))
    found = import_canal(folder, tmp_path / "conf")
    shop = load_config(tmp_path / "conf").destinations["example"]
    (kafka,) = shop.brokers
    assert not shop.canal_server.port
    assert isinstance(kafka, KafkaConfig)
    assert (kafka.client_id, kafka.format, kafka.bytes_max) == (1001, "flat", 102400)
    assert kafka.servers == "kafka1:9092,kafka2:9092"
    rules = rules_of(kafka)
    assert (rules.topic, rules.dynamic_topic) == ("everything", r"one:shop\.orders,.*\..*")
    assert (rules.partitions_num, rules.partition_hash) == (3, r"shop.orders:id^region,.*\..*:$pk$")
    assert (rules.dynamic_topic_partition_num, rules.database_hash) == ("one:6", False)
    assert any(file.name == FILE_NAME for file in found.files)
    said = "\n".join(found.sentences())
    assert "set the environment variable EXAMPLE_KAFKA_PASSWORD" in said
    assert "NOT imported: kafka.acks 1: acks is always `all`" in said
    assert "NOT imported: kafka.interceptor.classes" in said
    assert "not known" not in said
    assert "open-sesame" not in said + "".join(file.read_text() for file in found.files)
    settings = settings_of(kafka.servers, kafka.options, {"EXAMPLE_KAFKA_PASSWORD": "open-sesame"})
    assert (settings["sasl.username"], settings["sasl.password"]) == ("alice", "open-sesame")
    KafkaPublisher(settings).close()  # The broker's client accepts all settings.


@pytest.mark.found
def test_a_kafka_user_that_looks_like_a_variable_is_the_user_at_the_broker(tmp_path: Path) -> None:
    """Defect 1166: the user `$ConnectionString` of Azure Event Hubs became the name of a variable that the report did not mention."""
    found = import_canal(canal_folder(tmp_path, SERVER.replace("alice", "$ConnectionString")), tmp_path / "conf")
    (kafka,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(kafka, KafkaConfig)
    said = "\n".join(found.sentences())
    assert "set the environment variable EXAMPLE_KAFKA_USER to the user in kafka.sasl.jaas.config" in said
    secrets = {"EXAMPLE_KAFKA_USER": "$ConnectionString", "EXAMPLE_KAFKA_PASSWORD": "Endpoint=sb://"}
    settings = settings_of(kafka.servers, kafka.options, secrets)
    assert (settings["sasl.username"], settings["sasl.password"]) == ("$ConnectionString", "Endpoint=sb://")


def test_broker_of_canal_by_older_names_and_in_protobuf(tmp_path: Path) -> None:
    older = "canal.serverMode = kafka\ncanal.mq.servers = old:9092\ncanal.mq.flatMessage = false\ncanal.mq.lingerMs = 5"
    import_canal(canal_folder(tmp_path, older), tmp_path / "conf")
    (kafka,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(kafka, KafkaConfig)
    assert (kafka.servers, kafka.format, kafka.options["linger.ms"]) == ("old:9092", "protobuf", "5")
    assert kafka.bytes_max == 51200


RABBIT = """
canal.serverMode = rabbitMQ
rabbitmq.host = rabbit1:5673
rabbitmq.virtual.host = /shop
rabbitmq.exchange = changes
rabbitmq.username = alice
rabbitmq.password = open-sesame
rabbitmq.queue = all
rabbitmq.routingKey = example
rabbitmq.deliveryMode = DIRECT
canal.mq.partitionHash = .*:$pk$
"""


def test_broker_rabbitmq_of_canal_is_one_of_sluice(tmp_path: Path) -> None:
    found = import_canal(canal_folder(tmp_path, RABBIT), tmp_path / "conf")
    (rabbit,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(rabbit, RabbitConfig)
    assert (rabbit.servers, rabbit.virtual_host, rabbit.user) == ("rabbit1:5673", "/shop", "alice")
    assert (rabbit.exchange, rabbit.queue) == ("changes", "all")
    assert (rabbit.routing_key, rabbit.exchange_type, rabbit.topic) == ("example", "direct", "example")
    said = "\n".join(found.sentences())
    assert "set the environment variable EXAMPLE_RABBITMQ_PASSWORD to rabbitmq.password of example" in said
    assert "canal.mq.partitionHash: a queue of RabbitMQ has no partitions" in said
    assert "open-sesame" not in said + "".join(file.read_text() for file in found.files)
    assert rabbit.password == "$EXAMPLE_RABBITMQ_PASSWORD"  # noqa: S105


def test_broker_rabbitmq_of_a_uri_and_an_older_name(tmp_path: Path) -> None:
    uri = "canal.serverMode = rabbitMQ\ncanal.mq.servers = amqps://bob:open%2Fsesame@rabbit2/%2Fv\nrabbitmq.routingKey = alone"
    found = import_canal(canal_folder(tmp_path, uri), tmp_path / "conf")
    (rabbit,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(rabbit, RabbitConfig)
    assert (rabbit.servers, rabbit.user, rabbit.virtual_host) == ("rabbit2", "bob", "/v")
    assert rabbit.tls is not None
    said = "\n".join(found.sentences())
    assert "Sluice verifies it. Set tls.ca_file of the broker" in said
    assert "Canal and Sluice bind a queue only if the queue, the exchange and both of these keys are set" in said
    assert "sesame" not in said + "".join(file.read_text() for file in found.files)


ROCKET = """
canal.serverMode = rocketMQ
rocketmq.producer.group = canal
rocketmq.namespace = shop
rocketmq.namesrv.addr = names1:9876;names2:9876
rocketmq.retry.times.when.send.failed = 3
rocketmq.vip.channel.enabled = true
rocketmq.tag = changes
canal.aliyun.accessKey = alice
canal.aliyun.secretKey = open-sesame
canal.mq.enableDynamicQueuePartition = true
"""


def test_broker_rocketmq_of_canal_is_one_of_sluice(tmp_path: Path) -> None:
    hashed = "canal.mq.partitionsNum = 3\ncanal.mq.partitionHash = .*:$pk$"
    found = import_canal(canal_folder(tmp_path, ROCKET, hashed), tmp_path / "conf")
    (rocket,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(rocket, RocketConfig)
    assert (rocket.servers, rocket.group, rocket.namespace) == ("names1:9876;names2:9876", "canal", "shop")
    assert (rocket.tag, rocket.access_key, rules_of(rocket).partitions_num) == ("changes", "alice", 3)
    said = "\n".join(found.sentences())
    assert "set the environment variable EXAMPLE_ROCKETMQ_SECRET to canal.aliyun.secretKey of example" in said
    assert "NOT imported: rocketmq.vip.channel.enabled" in said
    assert "NOT imported: canal.mq.enableDynamicQueuePartition" in said
    assert "not known" not in said
    assert "open-sesame" not in said + "".join(file.read_text() for file in found.files)


PULSAR = """
canal.serverMode = pulsarMQ
pulsarmq.serverUrl = pulsar+ssl://pulsar1:6651,pulsar2:6651
pulsarmq.roleToken = open-sesame
pulsarmq.topicTenantPrefix = persistent://shop/changes
"""


@pytest.mark.seeds
def test_broker_pulsar_of_canal_is_one_of_sluice(tmp_path: Path) -> None:
    hashed = "canal.mq.partitionsNum = 3\ncanal.mq.partitionHash = .*:$pk$"
    found = import_canal(canal_folder(tmp_path, PULSAR, hashed), tmp_path / "conf")
    (pulsar,) = load_config(tmp_path / "conf").destinations["example"].brokers
    assert isinstance(pulsar, PulsarConfig)
    assert pulsar.url == "pulsar+ssl://pulsar1:6651,pulsar2:6651"
    assert (pulsar.namespace, rules_of(pulsar).partitions_num) == ("shop/changes", 3)
    said = "\n".join(found.sentences())
    assert "set the environment variable EXAMPLE_PULSAR_TOKEN to pulsarmq.roleToken of example" in said
    assert "not known" not in said
    assert "open-sesame" not in said + "".join(file.read_text() for file in found.files)


@pytest.mark.seeds
def test_a_pulsar_of_canal_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    lines = "canal.serverMode = pulsarMQ\npulsarmq.serverUrl = other\npulsarmq.topicTenantPrefix = a/b/c/d"
    found = import_canal(canal_folder(tmp_path, lines, ""), tmp_path / "conf")
    said = "\n".join(found.sentences())
    assert "NOT imported: pulsarmq.serverUrl is not a pulsar:// URL: set `servers`" in said
    assert "NOT imported: pulsarmq.topicTenantPrefix is not of the form tenant/namespace" in said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("options: {sasl.password: open-sesame}", "must be .NAME of an environment variable"),
        ("options: {acks: 1}", "options acks: 1 could lose messages"),
        ("options: {enable.idempotence: false}", "options enable.idempotence: false could lose messages"),
        ("options: {bootstrap.servers: 'other:9092'}", "name the servers in `servers`"),
        ("partitions_num: 0", "partitions_num"),
    ],
)
def test_broker_in_conf_that_is_wrong_is_reported_without_its_secret(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    text = f"source: {{user: root}}\nbrokers:\n- kind: kafka\n  servers: kafka:9092\n  topic: all\n  {lines}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=said) as refused:
        load_config(tmp_path / "conf")
    assert "open-sesame" not in str(refused.value)


@pytest.mark.found
def test_broker_passphrase_of_a_private_key_is_not_in_conf(tmp_path: Path) -> None:
    """Defect 1183: the option `sasl.oauthbearer.assertion.private.key.passphrase` of Kafka could be the secret itself in conf/."""
    lines = "options: {sasl.oauthbearer.assertion.private.key.passphrase: open-sesame}"
    test_broker_in_conf_that_is_wrong_is_reported_without_its_secret(tmp_path, lines, "must be .NAME")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("kind: rabbitmq, servers: 'rabbit:99:1'", "'rabbit:99:1' is not an address: write host:port"),
        (
            "kind: rabbitmq, servers: rabbit, routing_key: all",
            "set all of queue, exchange, routing_key and exchange_type",
        ),
        (
            "kind: rabbitmq, servers: rabbit, password: {}",
            "set exactly one of env",
        ),
        ("kind: rabbitmq, servers: rabbit, partitions_num: 3", "partitions_num"),
        ("kind: rocketmq, servers: names, access_key: alice", "set both access_key and secret_key"),
        ("kind: rocketmq, servers: ''", "servers"),
        ("kind: nats, servers: nats", "no kind of broker 'nats'; installed: kafka, .*rabbitmq, rocketmq"),
    ],
)
def test_broker_of_another_kind_that_is_wrong_is_reported(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    text = f"source: {{user: root}}\nbrokers:\n- {{topic: all, {lines}}}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load_config(tmp_path / "conf")


def test_broker_secret_is_in_no_text() -> None:
    rabbit = RabbitConfig(kind="rabbitmq", servers="rabbit", topic="t", password="$RABBIT_SECRET")  # noqa: S106
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RABBIT_SECRET", "open-sesame")
        target = rabbitmq.target_of(rabbit)
        assert "open-sesame" not in f"{target} {target!r} {target.parameters()}"


def test_brokers_of_one_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    broker = "- {kind: kafka, servers: 'kafka:9092', topic: all}\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(f"source: {{user: root}}\nbrokers:\n{broker}{broker}")
    with pytest.raises(ConfigurationError, match="two brokers have the same client_id"):
        load_config(tmp_path / "conf")
