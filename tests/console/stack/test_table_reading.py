"""Tests that `sluice up` reads the tables of the sources while Spark starts, and before it starts the processes that need the tables."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.instance import discovery
from sluice.console.stack.stack import CODE_SERVER, SPARK, Stack
from sluice.console.stack.supervisor import UP, PartRecord, State, Supervisor, SupervisorStep, next_step
from sluice.console.stack.table_reading import TableReading
from sluice.console.toolchain.errors import ServerError
from tests.waiting import wait_for


@pytest.fixture
def config(tmp_path: Path) -> SluiceConfig:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\n")
    text = "source: {user: root, password: $SHOP_PASSWORD, port: 1}\ninclude: shop\\..*\n"
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text(text)
    return load_config(tmp_path / "conf")


def test_the_code_server_waits_for_the_tables_and_spark_does_not(config: SluiceConfig, tmp_path: Path) -> None:
    parts = {part.name: part for part in Stack(config, tmp_path / "conf", print)._parts()}
    assert parts[CODE_SERVER].after == (TableReading.name,)
    assert parts[SPARK].after == ()


def test_it_is_done_when_the_tables_are_read(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, requested = threading.Event(), list[tuple[str, str | None]]()

    def discover(_config: SluiceConfig, destination: str, password: str | None) -> None:
        may_end.wait(60)
        requested.append((destination, password))

    monkeypatch.setattr(discovery, "discover", discover)
    part = TableReading(config, {"SHOP_PASSWORD": "secret"}, tmp_path / "log", pytest.fail)
    supervisor = Supervisor([part], lambda _: None, UP)
    supervisor.tick()
    supervisor.tick()
    assert not supervisor.is_ready()
    may_end.set()
    wait_for("the tables are read", part.answers)
    supervisor.until_ready()
    assert requested == [("shop", "secret")]


def test_a_source_that_does_not_answer_is_named_and_the_start_continues(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discover(*_: object) -> None:
        raise SourceConnectionError("nobody answers")

    monkeypatch.setattr(discovery, "discover", discover)
    said: list[str] = []
    Supervisor([TableReading(config, {}, tmp_path / "log", said.append)], lambda _: None, UP).until_ready()
    (sentence,) = said
    assert sentence.startswith("shop: Dagster shows the tables of the last start")
    assert sentence.endswith("nobody answers")


def test_an_unexpected_error_ends_the_start_and_is_in_the_log(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discover(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(discovery, "discover", discover)
    part = TableReading(config, {}, tmp_path / "logs" / "source-tables.log", pytest.fail)
    with pytest.raises(ServerError, match=r"reading of the sources' tables ended .*a defect"):
        Supervisor([part], lambda _: None, UP).until_ready()


def test_no_time_limit_ends_the_reading_of_many_sources_that_do_not_answer(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(discovery, "discover", lambda *_: may_end.wait(60))
    part = TableReading(config, {}, tmp_path / "log", pytest.fail)
    part.begin()
    kept = PartRecord(part, State.STARTING)
    assert next_step(kept, 1e9, (), part.ended(), part.answers) is SupervisorStep.NONE
    may_end.set()


def test_an_unexpected_error_is_noticed_also_if_the_log_is_not_writable(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discover(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(discovery, "discover", discover)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    part = TableReading(config, {}, tmp_path, pytest.fail)  # A folder cannot be written as a file.
    part.begin()
    wait_for("the reading has failed", lambda: bool(part.ended()))
    assert not part.answers(), "it does not count as done"
