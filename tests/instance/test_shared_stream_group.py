"""Tests two destinations of one server whose conf/ shares the stream: each stages the rows that match its own filter."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.operation.figures import StatusSample, families
from sluice.cdc_engine.server.protocol.traffic import ClientTraffic
from sluice.console.check import check_shared
from sluice.console.status.report import read_destination
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

NAMES = ("shop", "audit")


def described(captured: Captured) -> SluiceConfig:
    """Describes two destinations: `shop` captures numbers, `audit` captures others."""
    captured.describe("stream: shared")
    folder = captured.conf / "destinations"
    text = (folder / "shop.yaml").read_text()
    for name, table in zip(NAMES, ("numbers", "others"), strict=True):
        (folder / f"{name}.yaml").write_text(text.replace(r"\..*", rf"\.{table}"))
    return load_config(captured.conf)


@contextlib.contextmanager
def both(config: SluiceConfig) -> Iterator[list[Engine]]:
    with contextlib.ExitStack() as running:
        engines = [Engine(config, name) for name in NAMES]
        for engine in engines:
            engine.start()
            running.callback(engine.stop)
        yield engines


@pytest.mark.servers
def test_two_destinations_read_one_stream_each_with_its_own_filter_and_ledger(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    captured.run(f"CREATE TABLE {captured.database}.others (n INT PRIMARY KEY, filler LONGTEXT)")
    config = described(captured)
    assert check_shared(config).what == f"streams: audit, shop share one stream of 127.0.0.1:{mysql80.port}"
    with both(config) as engines:
        shared(engines)
        written = write(captured, range(5))
        assert [taken(captured, engine, 5) for engine in engines] == [written, written]
        wait_for("its file says so", lambda: read_destination(engines[1].directory, "audit", time.time()).shared)
        assert sample(engines[0], "sluice_stream_shared") == 1.0
        captured.run(f"ALTER TABLE {captured.database}.numbers ADD COLUMN more INT")
        written = write(captured, range(5, 8), more=True)
        assert [taken(captured, engine, 3) for engine in engines] == [written, written]


def shared(engines: list[Engine]) -> None:
    wait_for("both share", lambda: all(engine.status().stream.shared for engine in engines))


def write(captured: Captured, numbers: range, *, more: bool = False) -> list[int]:
    """Writes the same numbers into both tables."""
    for number in numbers:
        captured.run(
            f"INSERT INTO {captured.database}.numbers VALUES ({number}, ''{', 1' if more else ''})",
            f"INSERT INTO {captured.database}.others VALUES ({number}, '')",
        )
    return list(numbers)


def taken(captured: Captured, engine: Engine, count: int) -> list[int]:
    captured.directory = engine.directory
    return captured.take(engine, count)


def sample(engine: Engine, name: str) -> float:
    moment = StatusSample(engine.name, engine.status(), ClientTraffic().counters(), 0.0)
    return next(each.samples[0].value for each in families([moment]) if each.name == name)


def test_a_destination_without_another_one_to_share_with_is_reported(tmp_path: Path) -> None:
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    for name, user in (("a", "one"), ("b", "two"), ("c", "one")):
        word = "own" if name == "c" else "shared"
        (tmp_path / "conf" / "destinations" / f"{name}.yaml").write_text(f"source: {{user: {user}}}\nstream: {word}\n")
    found = check_shared(load_config(tmp_path / "conf"))
    assert found.what == "streams: each destination has a connection of its own"
    assert ["a has stream: shared" in found.warnings[0], "b has" in found.warnings[1]] == [True, True]
