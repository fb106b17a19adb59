"""Tests that a path in conf/ means the same file or folder in every process, in whatever folder the process was started. The same holds for
defaults.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.config_paths import database_url, table_location
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.stack.stack import Stack

ROOT = Path(__file__).parents[2]
# The code with which an engine, a run and the console load conf/. The test executes each in a separate process, as in production.
READERS = {
    "engine": "from sluice.cdc_engine.keeping.launcher import conf_in_use; c = conf_in_use().config",
    "run": "from sluice.cdc_engine.config import load_config; c = load_config()",
    "console": "from sluice.cdc_engine.config import conf_dir, load_config; c = load_config(conf_dir())",
}
PRINT_PATHS = "; import json; print(json.dumps([str(c.destination_dir('shop')), *(c.table_path('shop', 'shop', t) for t in ('a', 'b'))]))"


def write_conf(root: Path, main: str = "", tables: str = "") -> Path:
    (root / "conf" / "destinations").mkdir(parents=True)
    (root / "conf" / "sluice.yaml").write_text(main)
    (root / "conf" / "destinations" / "shop.yaml").write_text(
        "source: {user: sluice, tls: {mode: VERIFY_CA, ca_file: keys/ca.pem}}\n"
        + (f"tables: {tables}\n" if tables else "")
    )
    return root / "conf"


@pytest.mark.parametrize(
    ("main", "data", "lake"),
    [("", "data", "data/lake"), ("data_dir: var/d\nlake: ./l/\n", "var/d", "l")],
    ids=["defaults", "relative"],
)
@pytest.mark.parametrize("reader", READERS)
def test_identity_every_process_means_the_same_folders(
    tmp_path: Path, reader: str, main: str, data: str, lake: str
) -> None:
    conf = write_conf(tmp_path, main, "{shop.b: {path: elsewhere/b}}")
    elsewhere = tmp_path / "somewhere" / "else"
    elsewhere.mkdir(parents=True)
    wanted = [
        str(tmp_path / data / "engine" / "shop"),
        str(tmp_path / lake / "shop" / "a"),
        str(tmp_path / "elsewhere/b"),
    ]
    for folder, variable in ((tmp_path, ""), (elsewhere, str(conf)), (elsewhere, "../../conf")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"SLUICE_CONF": variable} if variable else {})
        answer = subprocess.run(
            [sys.executable, "-c", READERS[reader] + PRINT_PATHS],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(answer.stdout) == wanted, f"read in {folder} with SLUICE_CONF={variable!r}"


def test_identity_files_of_keys_and_of_a_database_are_relative_to_the_folder_of_conf(tmp_path: Path) -> None:
    config = load_config(write_conf(tmp_path, "meta: {kind: sql, url: 'sqlite:///meta.db'}\n"))
    assert config.destinations["shop"].source.tls.ca_file == tmp_path / "keys/ca.pem"
    assert config.meta.url == f"sqlite:///{tmp_path}/meta.db"


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("destinations/shop.yaml", "schema_history_url: sqlite:///history.db", r"set meta\.kind: sql and meta\.url"),
        (
            "destinations/shop.yaml",
            "reader: {user: sluice, aws_region: eu-west-1}",
            "`host` names the region",
        ),
        ("destinations/shop.yaml", "runway_hours_min: 5", "write retention_left_hours_min"),
        ("destinations/shop.yaml", "retention_hours_min: 5", "less than twice retention_left_hours_min"),
        ("destinations/shop.yaml", "tables: {shop.orders: {mirror: false}}", "use the setting current_state"),
        ("destinations/shop.yaml", "ring: {events_max: 5}", "the ring has at most 1000000 events"),
        (
            "destinations/shop.yaml",
            "canal_server: {window_bytes_max: 5}",
            "is as large as the destination's `ring.bytes_max`",
        ),
        ("destinations/shop.yaml", "batch: {events_max: 5}", "a batch ends after 1000000 events"),
        ("destinations/shop.yaml", "heartbeat: {timeout_seconds: 5}", "a check fails after 5 seconds"),
        ("destinations/shop.yaml", "equality: {settle_seconds: 5}", "the schedule waits 300 seconds"),
        (
            "destinations/shop.yaml",
            "archive_fetch: {command: [get, '{file}', '{path}'], seconds_max: 5}",
            "a command is ended after 3600 seconds",
        ),
        ("destinations/shop.yaml", "drain: {idle_seconds: 5}", "ends after 300 seconds without a batch"),
        ("destinations/shop.yaml", "drain: {seconds_max: 5}", "replaces a draining run after 1800 seconds"),
        (
            "sluice.yaml",
            "meta: {kind: period_mixed, hosts: 'zk:2181', period_seconds: 5}",
            "copies the cursor once a second",
        ),
        ("sluice.yaml", "dagster: {prune: ''}", "once an hour; to keep all of them, switch off prune_dagster_schedule"),
        ("sluice.yaml", "dagster: {keep_failures_hours: 5}", "kept for a week, or for `keep_hours` if that is longer"),
        ("sluice.yaml", "telemetry: {otlp: 'http://collector:4318'}", "OTEL_EXPORTER_OTLP_ENDPOINT for `otlp`"),
    ],
)
def test_a_removed_setting_is_refused_with_what_holds_now(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    conf = write_conf(tmp_path)
    with (conf / file).open("a") as opened:
        opened.write(f"{text}\n")
    with pytest.raises(ConfigurationError, match=f"{file}: .* was removed: .*{sentence}"):
        load_config(conf)


@pytest.mark.found
@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (
            "sluice.yaml",
            "engine: {address: '127.0.0.1:4267'}",
            "engine: `address` has no effect with `kind: embedded`: set `kind` to remote, or remove `address`",
        ),
        ("sluice.yaml", "engine: {token: $TOKEN}", "`token` has no effect with `kind: embedded`"),
        ("sluice.yaml", "meta: {url: 'sqlite:///meta.db'}", "`url` has no effect with `kind: file`: set `kind` to sql"),
        (
            "sluice.yaml",
            "meta: {kind: sql, url: 'sqlite:///meta.db', hosts: 'zk:2181'}",
            "`hosts` has no effect with `kind: sql`: set `kind` to zookeeper, mixed or period_mixed, or remove `hosts`",
        ),
        ("sluice.yaml", "spark: {master: 'local[2]', token: $TOKEN}", "`token` has no effect with `master`"),
        ("sluice.yaml", "alarms: [{kind: log, url: 'https://h'}]", "`url` has no effect with `kind: log`"),
        (
            "sluice.yaml",
            "alarms: [{kind: webhook, url: 'https://h', to: [a@b.c]}]",
            "set `kind` to email, or remove `to`",
        ),
        ("sluice.yaml", "metrics: {host: 0.0.0.0}", "without `port`, the server does not start"),
        ("destinations/shop.yaml", "canal_server: {rows_query: true}", "without `port`, the server does not start"),
        ("destinations/shop.yaml", "canal_server: {port: 1, key_file: k}", "no effect without `certificate_file`"),
        ("destinations/shop.yaml", "store: {bytes_max: 99999999999}", "set `kind` to file or mixed, or remove"),
        ("destinations/shop.yaml", "equality: {percent: 5}", "set `mode` to sample, or remove `percent`"),
        ("destinations/shop.yaml", "drain: {every_seconds: 5}", "set `runs` to drain, or remove `drain`"),
        ("destinations/shop.yaml", "failover_back_seconds: 5", "set `failover` to by_time"),
        ("destinations/shop.yaml", "heartbeat: {retries: 5}", "has no effect without a standby source"),
        (
            "destinations/shop.yaml",
            "reader: {user: a, tls: {ca_file: a}}",
            "set `mode` to VERIFY_CA or VERIFY_IDENTITY",
        ),
        (
            "destinations/shop.yaml",
            "reader: {user: a, tls: {key_file: a}}",
            "set `certificate_file`, or remove `key_file`",
        ),
        (
            "destinations/shop.yaml",
            "tables: {shop.a: {masks: {b: {kind: 'null', salt: $SALT}}}}",
            "`salt` has no effect with `kind: null`",
        ),
        (
            "destinations/shop.yaml",
            "brokers: [{kind: rocketmq, servers: r, topic: t, partitions_num: 3}]",
            "`partitions_num` has no effect without `partition_hash`",
        ),
        (
            "destinations/shop.yaml",
            "brokers: [{kind: rocketmq, servers: r, topic: t, partition: 1, partition_hash: '.*:a'}]",
            "`partition` has no effect with `partition_hash`",
        ),
        (
            "destinations/shop.yaml",
            "brokers: [{kind: kafka, servers: k, topic: t, format: avro, registry: {url: 'http://r', tls: {}}}]",
            "`tls` has no effect with a URL that begins with http://",
        ),
        ("remote.yaml", "{kind: archive, url: 'file:///c.tar', ref: main}", "`ref` has no effect with `kind: archive`"),
        ("remote.yaml", "{kind: git, url: 'https://h/c', user: me}", "`user` has no effect without `token`"),
    ],
)
def test_a_setting_without_effect_is_refused_with_what_to_write(
    tmp_path: Path, file: str, text: str, sentence: str
) -> None:
    """Defect 61: `engine.address` without `kind: remote`, and other settings that another setting makes ineffective, were ignored silently.
    With `ca_file` and without `tls.mode`, the server's certificate was not verified.
    """
    conf = write_conf(tmp_path)
    with (conf / file).open("a") as opened:
        opened.write(f"{text}\n")
    with pytest.raises(ConfigurationError, match=f"{file}: .*{re.escape(sentence)}"):
        load_config(conf)


def test_a_setting_with_its_default_value_and_a_server_that_is_switched_off_are_accepted(tmp_path: Path) -> None:
    conf = write_conf(tmp_path, "metrics: {port: 0, host: 0.0.0.0}\n")
    with (conf / "destinations" / "shop.yaml").open("a") as opened:
        opened.write("equality: {percent: 10}\ndrain: {every_seconds: 0}\ncanal_server: {port: 0, user: canal}\n")
    assert not load_config(conf).destinations["shop"].canal_server.port


def test_identity_children_get_the_conf_of_their_parent_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_conf(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert Stack(load_config(Path("conf")), Path("conf"), print).environment()["SLUICE_CONF"] == str(tmp_path / "conf")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("dbfs:/mnt/lake", "dbfs:/mnt/lake"),
        ("file:///srv/lake", "/srv/lake"),
        ("file:/srv/lake", "/srv/lake"),
        ("file://localhost/srv/lake/", "/srv/lake"),
        ("/srv/../srv/./lake/", "/srv/lake"),
    ],
)
def test_identity_one_folder_has_one_name(word: str, meant: str) -> None:
    assert table_location(word, None) == meant


@pytest.mark.parametrize("word", ["~/lake", "", "lake", "file://other/lake", "file:lake"])
def test_identity_a_setting_that_means_several_folders_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="write"):
        table_location(word, None)
    if word == "lake":
        return
    with pytest.raises(ValueError, match="write"):
        table_location(word, Path("/srv"))


@pytest.mark.parametrize(
    "url", ["mysql+pymysql://u:$P@h/db", "sqlite:////srv/h.db", "sqlite://", "sqlite:///:memory:", ""]
)
def test_identity_other_databases_stay_what_they_are(url: str) -> None:
    assert database_url(url, Path("/srv")) == url


def test_identity_a_configuration_without_files_must_say_whole_paths() -> None:
    with pytest.raises(ValueError, match="data/lake is relative"):
        SluiceConfig()


def test_identity_a_conf_that_is_not_there_is_no_conf_of_defaults(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SLUICE_CONF"):
        load_config(tmp_path / "conf")
