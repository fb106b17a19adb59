"""Tests where a destination that has read nothing begins on a standby source: at the source's `start`, and never at a file of another
server.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import DestinationConfig, load_config
from sluice.cdc_engine.errors import ConfigurationError, PositionLostError
from sluice.cdc_engine.instance.engine.begin import requested_position_of

pytestmark = pytest.mark.seeds
ONE = "{host: db1, user: u}"


def written(root: Path, first: str, second: str, *lines: str) -> DestinationConfig:
    (root / "destinations").mkdir(parents=True)
    (root / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: lake\n")
    text = "\n".join([f"sources: [{first}, {second}]", *lines, ""])
    (root / "destinations" / "shop.yaml").write_text(text)
    return load_config(root).destinations["shop"]


def test_each_source_has_a_start_of_its_own(tmp_path: Path) -> None:
    second = "{host: db2, user: u, start: {file: other-bin.000009, offset: 157}}"
    shop = written(tmp_path, ONE, second, "start: {file: mysql-bin.000007, offset: 120}")
    begin = [requested_position_of(shop.reading(each)) for each in ("db1:3306", "db2:3306")]
    assert [(each.file, each.offset) for each in begin] == [("mysql-bin.000007", 120), ("other-bin.000009", 157)]


@pytest.mark.parametrize(
    ("start", "fits"),
    [
        ("{file: mysql-bin.000007}", False),
        ("{file: mysql-bin.000007, time: '2026-03-01T12:00:00Z'}", False),
        ("{time: '2026-03-01T12:00:00Z'}", True),
        ("{gtid_set: '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'}", True),
        ("{earliest: true}", True),
        ("{}", True),
    ],
)
def test_the_start_of_a_destination_is_that_of_a_standby_source_unless_it_is_a_file(
    tmp_path: Path, start: str, fits: bool
) -> None:
    shop = written(tmp_path, ONE, "{host: db2, user: u}", f"start: {start}")
    there = shop.reading("db2:3306")
    if fits:
        assert requested_position_of(there) == requested_position_of(shop)
        return
    with pytest.raises(PositionLostError, match=r"start.file mysql-bin.000007 is a file of the first of `sources`"):
        requested_position_of(there)


def test_the_first_source_starts_where_the_destination_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the first of `sources` starts at the destination's `start`"):
        written(tmp_path, "{host: db1, user: u, start: {earliest: true}}", "{host: db2, user: u}")
