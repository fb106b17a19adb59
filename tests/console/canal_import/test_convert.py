"""Tests the conversion of Canal's conf folder to conf/ of Sluice: what is imported, what is reported, and that nothing is lost or
overwritten.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.meta.left_consumers import FILE_NAME, left_consumers
from sluice.cdc_engine.meta.stored_ledger import LEDGER as LEDGER_FILE
from sluice.cdc_engine.position import Position
from sluice.console.canal_import import convert
from sluice.console.canal_import.convert import Imported, import_canal
from sluice.console.canal_import.cursors import from_zookeeper
from sluice.console.canal_import.filters import not_captured
from tests.console.canal_import.fix_canal import canal_folder, meta

BEGIN = Position(epoch=1, file="mysql-bin.000009", offset=4)


def imported(folder: Path, tmp_path: Path) -> Imported:
    return import_canal(folder, tmp_path / "conf")


def test_canals_own_conf_is_a_conf_that_sluice_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(canal_folder(tmp_path), tmp_path)
    config = load_config(tmp_path / "conf")
    (name, shop), *others = config.destinations.items()
    assert (name, others) == ("example", [])
    assert (shop.source.host, shop.source.port, shop.source.user) == ("127.0.0.1", 3306, "canal")
    assert shop.source.password.startswith("$EXAMPLE_")
    assert (shop.include, shop.exclude.split(",")[-1]) == (r".*\..*", r"mysql\.slave_.*")
    assert (shop.canal_server.port, shop.canal_server.host) == (11111, "127.0.0.1")
    assert (config.metrics.port, config.meta.kind) == (11112, "file")
    said = "\n".join(found.sentences())
    assert "EXAMPLE_PASSWORD to canal.instance.dbPassword" in said
    assert not shop.brokers
    assert "Sluice listens only on the loopback address" in said
    assert "not known" not in said
    written = "".join(file.read_text() for file in found.files)
    assert "dbPassword" not in written


def test_what_canal_says_in_an_instance_wins_and_is_taken_over(tmp_path: Path) -> None:
    instance = r"""
canal.instance.mysql.slaveId = 1234
canal.instance.master.address = db.example:3307
canal.instance.master.journal.name = mysql-bin.000007
canal.instance.master.position = 120
canal.instance.master.sslMode = verify_ca
canal.instance.filter.regex = shop\\..*,test\\.t1
canal.instance.filter.field = shop.orders:id/status
"""
    server = "canal.user = canal\ncanal.passwd = E3619321C1A937C46A0D8BD1DAC39F93B27D4458\ncanal.ip = 10.0.0.5"
    found = imported(canal_folder(tmp_path, server, instance), tmp_path)
    shop = load_config(tmp_path / "conf").destinations["example"]
    assert (shop.source.host, shop.source.port, shop.source.server_id) == ("db.example", 3307, 1234)
    assert (shop.source.tls.mode, shop.include) == ("VERIFY_CA", r"shop\..*,test\.t1")
    assert (shop.start.file, shop.start.offset) == ("mysql-bin.000007", 120)
    assert shop.column_include == "shop.orders:id/status"
    server_conf = shop.canal_server
    assert (server_conf.host, server_conf.user, server_conf.password_hash) == (
        "10.0.0.5",
        "canal",
        "$CANAL_PASSWORD_HASH",
    )
    said = "\n".join(found.sentences())
    assert "E3619321" not in said + "".join(file.read_text() for file in found.files)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("canal.instance.standby.address = other:3306", "both servers need GTIDs"),
        ("canal.instance.standby.address = other:3306", "you switch with `sluice source switch`"),
        ("canal.instance.standby.journal.name = bin.000001", "set canal.instance.standby.address"),
        ("canal.serverMode = natsMQ", "Sluice has no built-in broker of this kind: install or write a plug-in"),
        ("canal.instance.memory.batch.mode = ITEMSIZE", "converted to `fetch_unit`, the unit of a client's fetch size"),
        ("canal.auto.reset.latest.pos.mode = true", "POSITION_LOST"),
        ("canal.admin.manager = 127.0.0.1:8089", "not in this folder"),
        ("canal.zkServers = zk1:2181", "the ledger is in a file"),
        ("canal.instance.global.spring.xml = classpath:spring/memory-instance.xml", "forgot its position"),
        ("canal.something.new = 1", "canal.something.new: not known to Sluice"),
    ],
)
def test_settings_of_canal_that_sluice_does_not_have_are_reported(tmp_path: Path, line: str, said: str) -> None:
    assert said in "\n".join(imported(canal_folder(tmp_path, line), tmp_path).sentences())


@pytest.mark.found
def test_a_placeholder_of_the_instances_name_has_the_value_that_canal_sets(tmp_path: Path) -> None:
    """Defect 1165: for `canal.mq.topic = cdc_${canal.instance.destination}`, all instances sent to the same topic `cdc_`."""
    folder = canal_folder(
        tmp_path,
        "canal.destinations = orders\ncanal.serverMode = kafka\ncanal.mq.dynamicTopic = ${canal.instance.destination}_t:shop\\\\..*",
        "canal.mq.topic = cdc_${canal.instance.destination}",
        name="orders",
    )
    imported(folder, tmp_path)
    (broker,) = load_config(tmp_path / "conf").destinations["orders"].brokers
    assert (broker.topic, broker.dynamic_topic) == ("cdc_orders", r"orders_t:shop\..*")


def test_canals_cursors_in_its_file_are_taken_over_the_oldest_first(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, instance="canal.instance.master.journal.name = mysql-bin.000001")
    (folder / "example" / "meta.dat").write_text(meta((1001, 20154, 1597025219500), (1002, 15154, 1597025212500)))
    found = imported(folder, tmp_path)
    config = load_config(tmp_path / "conf")
    assert config.destinations["example"].start.time == "2020-08-10T02:06:52+00:00"
    assert config.destinations["example"].start.file == ""
    consumers = left_consumers(config.destination_dir("example"), BEGIN)
    assert [(each.client_id, each.filter, each.cursor) for each in consumers] == [
        (1001, r".*\..*", BEGIN), (1002, r".*\..*", BEGIN)
    ]  # fmt: skip
    assert "clients 1001, 1002 continue" in "\n".join(found.sentences())


def test_a_missing_cursor_of_canal_is_reported_with_the_searched_locations(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, f"canal.file.data.dir = {tmp_path / 'elsewhere'}")
    said = imported(folder, tmp_path).findings["example"].left
    (latest,) = [each for each in said if "LATEST" in each]
    assert str(tmp_path / "elsewhere" / "example" / "meta.dat") in latest
    assert not load_config(tmp_path / "conf").destinations["example"].start.time
    nobody: Any = SimpleNamespace(exists=lambda _path: None)
    assert "/otter/canal/destinations/example" in from_zookeeper(nobody, "/otter/canal/destinations/example").where


def test_a_start_from_canals_properties_is_reported_with_the_locations_without_a_cursor(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, instance="canal.instance.master.timestamp = 1597025212500")
    found = imported(folder, tmp_path).findings["example"]
    assert not [each for each in found.left if "LATEST" in each]
    assert any("begins at this position" in each and "meta.dat" in each for each in found.taken)


def test_a_client_of_canal_with_a_wider_filter_is_reported(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, instance=r"canal.instance.filter.regex = shop\\..*")
    (folder / "example" / "meta.dat").write_text(meta((1001, 4, 1), table_filter=r"shop\.orders,stock\..*"))
    (said,) = [each for each in imported(folder, tmp_path).findings["example"].left if "client 1001" in each]
    assert r"tables that match stock\..* but not `include` are not delivered" in said


@pytest.mark.parametrize(
    ("requested", "include", "outside"),
    [
        (r"shop\.orders", r".*\..*", []),
        (r"shop\.orders,Shop\..*", r"shop\..*", []),
        (r".*\..*", r"shop\..*", [r".*\..*"]),
        (r"stock\..*", r".*\..*", []),
        (r"stock.items,stock\.items", r"stock\.i.*", []),
        ("mysql.user", r".*\..*", ["mysql.user"]),
        ("", r"shop\..*", []),
    ],
)
def test_the_filter_of_a_canal_client_is_compared_with_the_captured_tables(
    requested: str, include: str, outside: list[str]
) -> None:
    assert not_captured(requested, include, r"mysql\..*") == outside


def test_the_consumers_that_canal_left_are_a_file_that_is_named_and_a_ledger_wins(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path)
    (folder / "example" / "meta.dat").write_text(meta((1001, 20154, 1597025219500)))
    found = imported(folder, tmp_path)
    there = tmp_path / "data" / "engine" / "example"
    assert f"written: {there / FILE_NAME}" in found.sentences()
    assert any("move this file too" in each for each in found.findings["example"].taken)
    for file in found.files:
        file.unlink()
    (there / LEDGER_FILE).write_text("{}")
    again = imported(folder, tmp_path)
    assert not (there / FILE_NAME).exists()
    (said,) = [each for each in again.findings["example"].left if "has a ledger already" in each]
    assert str(there) in said


def test_canals_standby_and_its_detecting_are_sources_and_their_heartbeat(tmp_path: Path) -> None:
    detecting = """
canal.instance.detecting.enable = true
canal.instance.detecting.heartbeatHaEnable = true
canal.instance.detecting.sql = select 1 from dual
canal.instance.detecting.interval.time = 7
canal.instance.detecting.retry.threshold = 2
"""
    instance = "canal.instance.master.address = db1:3307\ncanal.instance.standby.address = db2"
    found = imported(canal_folder(tmp_path, detecting, instance), tmp_path)
    shop = load_config(tmp_path / "conf").destinations["example"]
    assert [(each.address, each.user) for each in shop.sources] == [("db1:3307", "canal"), ("db2:3306", "canal")]
    assert {each.password for each in shop.sources} == {"$EXAMPLE_PASSWORD"}
    beat = shop.heartbeat
    assert (beat.sql, beat.seconds, beat.retries, beat.switch) == ("select 1 from dual", 7.0, 2, True)
    assert "not known" not in "\n".join(found.sentences())


@pytest.mark.found
@pytest.mark.parametrize("key", ["canal.instance.master.address", "canal.instance.standby.address"])
def test_an_address_is_imported_as_a_whole_or_not_at_all(tmp_path: Path, key: str) -> None:
    """Defect 1173: `db: 3307` and `db:3307x` were imported with port 3306, and `[::1]:3307` with the host `[`."""
    for number, (address, found) in enumerate({"[::1]:3307": ("::1", 3307), "db": ("db", 3306)}.items()):
        folder = tmp_path / str(number)
        imported(canal_folder(folder, instance=f"{key} = {address}"), folder)
        shop = load_config(folder / "conf").destinations["example"]
        source = (shop.sources or (shop.source,))[-1]
        assert (source.host, source.port) == found
    for number, address in enumerate(["db: 3307", "db:3307x", "db:", "::1", "[::1", "db1:3307,db2:3307"], 2):
        folder = tmp_path / str(number)
        with pytest.raises(ConfigurationError, match=f"{key}: '.*' is not an address: write host:port"):
            imported(canal_folder(folder, instance=f"{key} = {address}"), folder)


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("gtidon", "cursor", "start"),
    [
        ("false", False, {"file": "other-bin.000009", "offset": 157}),
        ("true", False, {"gtid_set": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"}),
        ("false", True, None),
    ],
)
def test_canals_standby_has_its_own_position(
    tmp_path: Path, gtidon: str, cursor: bool, start: dict[str, object] | None
) -> None:
    instance = f"""
canal.instance.gtidon = {gtidon}
canal.instance.standby.address = db2
canal.instance.standby.journal.name = other-bin.000009
canal.instance.standby.position = 157
canal.instance.standby.gtid = 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5
"""
    folder = canal_folder(tmp_path, instance=instance)
    if cursor:
        (folder / "example" / "meta.dat").write_text(meta((1001, 20154, 1597025219500)))
    found = imported(folder, tmp_path).findings["example"]
    _, second = load_config(tmp_path / "conf").destinations["example"].sources
    assert (second.start.model_dump(exclude_defaults=True) if second.start else None) == start
    named = {
        kind for kind in ("taken", "left", "no_meaning") if "standby.journal.name" in "\n".join(getattr(found, kind))
    }
    assert named == {"no_meaning" if cursor else "left" if gtidon == "true" else "taken"}


def test_canals_detecting_that_writes_or_may_not_switch_is_reported(tmp_path: Path) -> None:
    server = "canal.instance.detecting.enable = true\ncanal.instance.detecting.sql = insert into retl.xdual values (1, now())"
    instance = "canal.instance.standby.address = db2:3306"
    found = imported(canal_folder(tmp_path, server, instance), tmp_path)
    beat = load_config(tmp_path / "conf").destinations["example"].heartbeat
    assert (beat.sql, beat.switch) == ("SELECT 1", False)
    said = "\n".join(found.findings["example"].left)
    assert "detecting.sql 'insert into retl.xdual values (1, now())' writes" in said
    assert "heartbeatHaEnable" in said


def test_a_damaged_cursor_of_canal_is_no_begin_elsewhere(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path)
    (folder / "example" / "meta.dat").write_text("")
    with pytest.raises(ConfigurationError, match=r"meta\.dat cannot be read"):
        imported(folder, tmp_path)
    assert not (tmp_path / "conf").exists()
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(MetaError, match="import Canal's folder again"):
        left_consumers(tmp_path, BEGIN)


def test_an_import_from_canal_overwrites_nothing(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path)
    imported(folder, tmp_path)
    with pytest.raises(ConfigurationError, match="the import overwrites no files"):
        imported(folder, tmp_path)
    with pytest.raises(ConfigurationError, match=r"no canal\.properties"):
        import_canal(tmp_path / "conf", tmp_path / "other")


def test_a_canal_name_that_no_destination_can_have_is_reported(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, "canal.destinations = My-Shop\ncanal.auto.scan = false", name="My-Shop")
    found = imported(folder, tmp_path)
    assert [*load_config(tmp_path / "conf").destinations] == ["my_shop"]
    assert "the destination is called my_shop" in "\n".join(found.sentences())


@pytest.mark.found
def test_an_import_whose_result_is_invalid_leaves_no_file(tmp_path: Path) -> None:
    """Defect 82: the files of an invalid import stayed. The next import refused them as files that it must not overwrite."""
    folder, target = canal_folder(tmp_path), tmp_path / "conf"
    (target / "destinations").mkdir(parents=True)
    other = target / "destinations" / "other.yaml"
    other.write_text("include: 7\n")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"other\.yaml"):
            import_canal(folder, target)
        assert [path for path in target.rglob("*") if path.is_file()] == [other]


@pytest.mark.found
def test_an_import_that_cannot_write_all_its_files_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 90: if the disk became full at the second file, the first file stayed, and the next import refused it."""
    folder = canal_folder(tmp_path)

    def full(path: Path, text: str) -> None:
        if path.parent.name == "destinations":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, text)

    monkeypatch.setattr(convert, "replace_file", full)
    with pytest.raises(OSError, match="No space left"):
        imported(folder, tmp_path)
    assert not [path for path in (tmp_path / "conf").rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert imported(folder, tmp_path).files


def test_an_import_whose_ledger_cannot_be_read_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> list[Path]:
        raise MetaError("the database does not answer")

    folder = canal_folder(tmp_path)
    monkeypatch.setattr(convert, "_leave_consumers", unreachable)
    with pytest.raises(MetaError):
        imported(folder, tmp_path)
    assert not [path for path in (tmp_path / "conf").rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert imported(folder, tmp_path).files
