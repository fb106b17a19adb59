"""Tests that a comparison waits until the lake has everything that the source has. This also works if the binlog ends in events that
belong to no transaction.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.position import Position
from sluice.equality.merged import DestinationMerged, reached
from sluice.equality.source_side import BinlogEnd, SourceSide
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

MARIADB, MYSQL = "mariadb-1", "4b1d6f0e-0000-0000-0000-000000000001"
ONE, TWO = f"{MYSQL}:1", f"{MYSQL}:1-2"


def at(server: str, offset: int, gtid_set: str) -> Position:
    return Position(epoch=1, file="binlog.000002", offset=offset, gtid_set=gtid_set, server_uuid=server)


@pytest.mark.parametrize(
    ("cursor", "end", "expected"),
    [
        (at(MYSQL, 900, ONE), BinlogEnd(server_uuid=MYSQL, file="binlog.000002", offset=900), True),
        (at(MYSQL, 900, ONE), BinlogEnd(server_uuid=MYSQL, file="binlog.000002", offset=901, gtid_set=ONE), False),
        (
            at(MARIADB, 900, "0-1-7"),
            BinlogEnd(server_uuid=MARIADB, file="binlog.000002", offset=940, gtid_set="0-1-7"),
            True,
        ),
        (
            at(MARIADB, 900, "0-1-7"),
            BinlogEnd(server_uuid=MARIADB, file="binlog.000003", offset=385, gtid_set="0-1-7"),
            True,
        ),
        (
            at(MARIADB, 900, "0-1-7"),
            BinlogEnd(server_uuid=MARIADB, file="binlog.000002", offset=940, gtid_set="0-1-8"),
            False,
        ),
        (
            at(MARIADB, 900, ""),
            BinlogEnd(server_uuid=MARIADB, file="binlog.000002", offset=940, gtid_set="0-1-7"),
            False,
        ),
        (at("another", 4, TWO), BinlogEnd(server_uuid=MYSQL, file="binlog.000002", offset=940, gtid_set=TWO), True),
        (at("another", 4, ONE), BinlogEnd(server_uuid=MYSQL, file="binlog.000001", offset=4, gtid_set=TWO), False),
        (None, BinlogEnd(server_uuid=MYSQL, file="binlog.000001", offset=4), False),
    ],
)
def test_a_position_is_reached_by_gtids_where_the_server_has_them_equality(
    cursor: Position | None, end: BinlogEnd, *, expected: bool
) -> None:
    assert reached(cursor, end) is expected


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["mysql80", "mysql57", "mariadb114"])
def test_the_end_of_an_idle_source_is_reached_equality(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    shop = Captured(tmp_path, request.getfixturevalue(kind))
    with running(shop) as engine, SourceSide(source_of(shop.config.destinations["shop"])) as source:
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
        shop.run("FLUSH BINARY LOGS")
        merged = DestinationMerged(shop.directory)

        def there() -> bool:
            assert engine.hand_out(0.2) is None
            return merged.wait(source.end(), 0)

        wait_for("all is known to be merged", there)
