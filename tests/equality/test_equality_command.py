"""Tests `sluice equal`: exit codes, output, JSON, and the wait until merges have reached a position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.position import Position, order_key
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.equality.merged import order_key_of, reached
from sluice.equality.source_side import BinlogEnd
from tests.equality.shelf import Shelf, changed
from tests.fix_ledgers import FileLedger

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
RUNNER = CliRunner()
ROWS = pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})
SECRET = "very-secret-42"  # noqa: S105


@pytest.fixture
def shelf(mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    made = Shelf(mysql80, tmp_path)
    conf = tmp_path / "conf"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text(
        yaml.safe_dump({"data_dir": str(made.config.data_dir), "lake": str(made.config.lake)})
    )
    source = {"port": mysql80.port, "user": "root", "password": "$SLUICE_EQUAL_PASSWORD"}
    (conf / "destinations/shelf.yaml").write_text(
        yaml.safe_dump({"source": source, "include": rf"{made.database}\..*"})
    )
    monkeypatch.setenv("SLUICE_CONF", str(conf))
    monkeypatch.setenv("SLUICE_EQUAL_PASSWORD", "")
    made.make("CREATE TABLE {db}.t (id int PRIMARY KEY, v varchar(9))", "INSERT INTO {db}.t VALUES (1, 'a'), (2, 'b')")
    made.lay("t", ROWS)
    yield made
    made.drop()


@pytest.mark.servers
def test_equality_the_command_distinguishes_equal_different_and_unknown(shelf: Shelf) -> None:
    done = RUNNER.invoke(app, ["equal", "shelf", "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.output)
    assert (found["verdict"], found["rows"], found["table"]) == ("equal", 2, f"{shelf.database}.t")
    position = Position(
        epoch=1, file=found["position"].partition(":")[0], offset=1 << 30, server_uuid=found["server_uuid"]
    )

    shelf.lay("t", changed(ROWS, "v", 1, "x"))
    done = RUNNER.invoke(app, ["equal", "shelf", "--settle-seconds", "0"])
    assert done.exit_code == 1
    assert "not known" in done.output
    assert (
        "the lake has nothing, and no engine runs for this destination: start the engine with `sluice up`"
        in done.output
    )

    FileLedger(shelf.config.destination_dir("shelf")).update(
        lambda _: Ledger(ledger_id="0123456789ab", cursor=position)
    )
    done = RUNNER.invoke(app, ["equal", "shelf", "--tables", f"{shelf.database}.t"])
    assert done.exit_code == 1
    assert "id=2: v is 'b' in the source and 'x' in the lake" in done.output


@pytest.mark.servers
def test_equality_the_command_refuses_what_it_cannot_understand(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["nowhere"], ["shelf", "--tables", "other.t"], ["shelf", "--full", "--sample", "5"]):
        assert RUNNER.invoke(app, ["equal", *words]).exit_code, words
    monkeypatch.setenv("SLUICE_EQUAL_PASSWORD", SECRET)
    done = RUNNER.invoke(app, ["equal", "shelf"])
    assert done.exit_code
    assert SECRET not in f"{done.output}{done.exception}"
    assert shelf.database


def cursor(file: str = "b.000002", offset: int = 500, uuid: str = UUID, gtids: str = "") -> Position:
    return Position(epoch=3, file=file, offset=offset, server_uuid=uuid, gtid_set=gtids)


@pytest.mark.parametrize(
    ("found", "end", "wanted"),
    [
        (None, BinlogEnd(server_uuid=UUID, file="b.000002", offset=4), False),
        (cursor(), BinlogEnd(server_uuid=UUID, file="b.000002", offset=500), True),
        (cursor(), BinlogEnd(server_uuid=UUID, file="b.000002", offset=501), False),
        (cursor(), BinlogEnd(server_uuid=UUID, file="b.000010", offset=4), False),
        (cursor("b.1000000"), BinlogEnd(server_uuid=UUID, file="b.999999", offset=900), True),
        (cursor(), BinlogEnd(server_uuid=OTHER, file="b.000001", offset=4), False),
        (cursor(gtids=f"{UUID}:1-9"), BinlogEnd(server_uuid=OTHER, file="b.000009", offset=4, gtid_set=f"{UUID}:1-9"), True),
        (cursor(gtids=f"{UUID}:1-9"), BinlogEnd(server_uuid=OTHER, file="b.000001", offset=4, gtid_set=f"{UUID}:1-10"), False),
    ],
)  # fmt: skip
def test_equality_a_position_is_reached_by_file_and_offset_of_one_server_or_by_gtids(
    found: Position | None,
    end: BinlogEnd,
    wanted: bool,
) -> None:
    assert reached(found, end) is wanted


def test_equality_a_position_has_an_order_key_only_on_the_cursors_server() -> None:
    end = BinlogEnd(server_uuid=UUID, file="b.000002", offset=500)
    assert order_key_of(cursor(), end) == order_key(3, 2, 500)
    assert order_key_of(cursor(uuid=OTHER), end) is None
