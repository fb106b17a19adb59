"""Tests that each feature works for an account with exactly the privileges that its page names, and that all providers' pages name the
same privileges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.rows.plan import make_plan
from sluice.cdc_engine.instance.rows.rules import RequestedInterval
from sluice.cdc_engine.instance.rows.source_rows import SourceRows
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.meta.managers import read_ledger
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.positions.binlog_files import BinlogFiles
from sluice.cdc_engine.parser.positions.time_search import choice_at
from sluice.cdc_engine.parser.server_facts import read_facts
from sluice.cdc_engine.snapshot.exact_position import rows_at_a_position
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.source.heartbeat import Heartbeat
from sluice.cdc_engine.table_meta.history.source.live_schema import schema_now
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.source_side import SourceSide
from sluice.equality.values import Extent, Verdict
from tests.instance.fix_destination import Captured, running
from tests.parser.providers.test_grants import PAGE, PRIVILEGES

pytestmark = [pytest.mark.managed, pytest.mark.servers]

ROWS = range(3)


class Feature:
    """A destination whose account has exactly the privileges that the page names. An engine has read `ROWS`, and has ended."""

    def __init__(self, captured: Captured, user: str) -> None:
        self.captured, self.user = captured, user
        captured.run(
            f"DROP USER IF EXISTS {user}",
            f"CREATE USER {user}",
            f"GRANT {PRIVILEGES} ON *.* TO {user}",
            f"CREATE TABLE {captured.database}.keyless (n INT)",
            f"INSERT INTO {captured.database}.keyless VALUES (7)",
        )
        self.began_us = time.time_ns() // 1000
        captured.describe(source=f"{{user: {user}, port: {captured.server.port}}}")
        with running(captured) as engine:
            captured.insert(ROWS)
            captured.take(engine, len(ROWS))

    @property
    def conf(self) -> DestinationConfig:
        return self.captured.config.destinations["shop"]

    def table(self, name: str) -> TableVersion:
        return next(each for each in SourceSchema(self.conf).captured if each.table == name)


def snapshot(feature: Feature, folder: Path) -> None:
    """Reads chunks by key, as a snapshot does, and rows of given keys, as a repair does."""
    cursor = read_ledger(feature.captured.directory).cursor
    assert cursor is not None
    rows = SourceRows(feature.captured.config, "shop")
    assert rows.read(f"{feature.captured.database}.numbers", ["n >= 0"], cursor, folder).rows == len(ROWS)


def keyless_snapshot(feature: Feature, _folder: Path) -> None:
    table = feature.table("keyless")
    with rows_at_a_position(lambda: open_reader(source_of(feature.conf)), table) as (reader, end):
        assert reader.texts(f"SELECT n FROM {feature.captured.database}.keyless") == [("7",)]
        assert end.file


def equal(feature: Feature, _folder: Path) -> None:
    source = source_of(feature.conf)
    requested = ComparedDestination(feature.captured.config, "shop", source)
    results = list(compare_destination(requested, (), Extent(mode="full", settle_seconds=1)))
    assert {each.rows for each in results} == {1, len(ROWS)}
    assert {each.verdict for each in results} == {Verdict.DIFFERENT}, "nothing was merged"
    with SourceSide(source) as side, side.read_view() as end:
        assert end is not None


def backfill(feature: Feature, _folder: Path) -> None:
    requested = RequestedInterval(from_us=feature.began_us, to_us=None)
    plan = make_plan(feature.conf, feature.captured.directory, requested, time.time_ns() // 1000)
    # Commit times of MariaDB are whole seconds, so the interval may also contain earlier changes of the same second.
    assert sum(each.changes for each in plan.tables) >= len(ROWS)


def time_search(feature: Feature, _folder: Path) -> None:
    source = source_of(feature.conf)
    with contextlib.closing(SourceConnection(source)) as connection:
        facts = read_facts(connection)
    assert choice_at(BinlogFiles(source, facts), feature.began_us).file


def schema_check(feature: Feature, _folder: Path) -> None:
    with contextlib.closing(SourceConnection(source_of(feature.conf))) as connection:
        end = read_facts(connection)
        location = f"{end.file}:{end.offset}@1"
        found = connection.query(lambda session: schema_now(session, feature.captured.database, "numbers", location))
    assert found is not None
    assert SourceSchema(feature.conf).foreign_keys() == ()


def heartbeat(feature: Feature, _folder: Path) -> None:
    beat = Heartbeat(source_of(feature.conf), feature.conf.heartbeat.sql)
    assert beat.failure() == ""
    beat.close()


FEATURES: tuple[Callable[[Feature, Path], None], ...] = (
    *(snapshot, keyless_snapshot, equal, backfill, time_search, schema_check, heartbeat),
)


@pytest.fixture(params=["mysql80", "mysql9", "mariadb114"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    return Captured(tmp_path, request.getfixturevalue(request.param))


@pytest.mark.parametrize("use", FEATURES, ids=lambda use: use.__name__)
def test_a_feature_works_with_the_documented_grant(
    use: Callable[[Feature, Path], None], captured: Captured, tmp_path: Path
) -> None:
    feature = Feature(captured, f"only_{use.__name__}")
    use(feature, tmp_path)
    captured.run(f"DROP USER {feature.user}")


@pytest.mark.parametrize("page", ["rds-aurora.md", "cloud-sql.md", "azure.md"])
def test_the_page_of_each_provider_names_the_same_grant(page: str) -> None:
    assert f"GRANT {PRIVILEGES} ON *.* TO 'sluice'@'%';" in (PAGE.parent / page).read_text()
