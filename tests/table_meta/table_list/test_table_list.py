"""Tests the list of the captured tables: what readers find after writes, crashes during a write, takeovers, and restored files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine import durable_files
from sluice.cdc_engine.contracts import Column, LedgerLocation, TableVersion
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.records import files
from sluice.cdc_engine.table_meta.table_list import head, reading, whole
from sluice.cdc_engine.table_meta.table_list.head import HEAD
from sluice.cdc_engine.table_meta.table_list.reading import (
    count_of_list,
    digest_of_list,
    list_store,
    read_list,
    read_table,
    read_tables,
)
from sluice.cdc_engine.table_meta.table_list.record import FOLDER, record_of, table_to_json
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter, write_tables
from tests.records.fix_locations import KINDS, SERVERS, location_of

ORDERS = TableVersion(
    database="shop",
    table="orders",
    columns=(
        Column(name="id", type_code=3),
        Column(name="s", type_code=254, metadata=0xF701, charset="utf8mb4", labels=("ä", "b")),
    ),
    key=("id",),
    version="abc",
)
ITEMS = dataclasses.replace(ORDERS, table="items", columns=(Column(name="id", type_code=3),), version="def")
CHANGED = dataclasses.replace(ITEMS, key=(), version="ghi")
NOTES = dataclasses.replace(ITEMS, table="notes", version="jkl")
CASCADE = Cascade(
    name="fk",
    parent=("shop", "orders"),
    child=("other", "items"),
    columns=("order_id",),
    referenced=("id",),
    on_delete="CASCADE",
    captured=False,
    key=("id",),
)
COMMENTS = {"shop.orders": {"": "what was sold", "id": "the number"}}


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    return location_of(request.param, request, tmp_path)


every_kind = pytest.mark.parametrize("location", KINDS, indirect=True)
every_shared_kind = pytest.mark.parametrize("location", ["sqlite", *SERVERS], indirect=True)


def in_a_new_process(location: LedgerLocation | Path) -> tuple[TableVersion, ...]:
    """Returns the tables that a new process finds. Forgets what this process has read before."""
    reading._read.clear()
    return read_tables(location)


class Interrupted(Exception):  # noqa: N818  a process that ends
    """The process ends here."""


def interrupt_at(patch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the process end immediately before it writes the file `name`."""
    write = durable_files.write_file

    def written(path: Path, content: bytes) -> None:
        if path.name == name:
            raise Interrupted
        write(path, content)

    patch.setattr(files, "write_file", written)
    patch.setattr(files, "replace_file", written)


@every_kind
def test_a_list_is_read_as_it_was_written(location: LedgerLocation) -> None:
    assert (read_tables(location), digest_of_list(location), count_of_list(location)) == ((), "", None)
    write_tables(location, [ORDERS, ITEMS], [CASCADE], COMMENTS)
    assert in_a_new_process(location) == (ITEMS, ORDERS)
    found = read_list(location)
    assert (found.cascades, found.comments) == ((CASCADE,), COMMENTS)
    assert found.by_name["shop.orders"].types == ("int", "string")
    assert read_table(location, "shop.orders") == found.by_name["shop.orders"]
    assert (read_table(location, "shop.gone"), count_of_list(location)) == (None, 2)
    first = digest_of_list(location)
    write_tables(location, [CHANGED, ORDERS], comments=COMMENTS)
    assert read_tables(location) == (CHANGED, ORDERS)
    assert read_list(location).cascades == ()
    assert digest_of_list(location) != first
    write_tables(location, [ORDERS, ITEMS], [CASCADE], COMMENTS)
    assert digest_of_list(location) == first, "it is the list of before"
    assert read_tables(location) == in_a_new_process(location) == (ITEMS, ORDERS)
    write_tables(location, [])
    assert (read_tables(location), digest_of_list(location), count_of_list(location)) == ((), "", 0)
    assert list_store(location).read_all(f"{FOLDER}/") == {}, "a table that is dropped leaves no record"


@every_kind
def test_a_reader_that_knows_the_list_reads_one_table_from_it_or_its_record(location: LedgerLocation) -> None:
    write_tables(location, [ORDERS, ITEMS])
    read_list(location)
    write_tables(location, [ORDERS, CHANGED])
    for known in (True, False):
        if not known:
            reading._read.clear()
        found = read_table(location, "shop.items")
        assert found is not None
        assert found.version == CHANGED


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 9, "tables": []}',
        '{"format": 2, "tables": [{"x": 1}]}',
        '{"format": 3, "digest": ""}',
    ],
)
def test_a_head_of_another_shape_is_refused_and_written_again(tmp_path: Path, content: str) -> None:
    write_tables(tmp_path, [ORDERS])
    (tmp_path / HEAD).write_text(content)
    for read in (read_list, digest_of_list, lambda stored_at: read_table(stored_at, "shop.orders")):
        with pytest.raises(MetaError, match="remove it, and the engine writes it again"):
            read(tmp_path)
    write_tables(tmp_path, [ORDERS])
    assert read_tables(tmp_path) == (ORDERS,)


def test_a_record_of_another_shape_is_named(tmp_path: Path) -> None:
    write_tables(tmp_path, [ORDERS, ITEMS])
    path = tmp_path / record_of("shop.items")
    path.write_text("{")
    with pytest.raises(
        MetaError, match=rf"{path.name} of a table cannot be read .* remove it, and the engine writes it again"
    ):
        in_a_new_process(tmp_path)
    path.unlink()
    assert in_a_new_process(tmp_path) == (ORDERS,)
    write_tables(tmp_path, [ORDERS, ITEMS])
    assert read_tables(tmp_path) == (ITEMS, ORDERS)


@pytest.mark.parametrize("name", [HEAD, Path(record_of("shop.items")).name, Path(record_of("shop.orders")).name])
def test_a_writer_that_is_killed_leaves_the_list_of_before_and_the_next_one_completes_it(
    tmp_path: Path, name: str
) -> None:
    write_tables(tmp_path, [ORDERS, ITEMS])
    assert read_tables(tmp_path) == (ITEMS, ORDERS)
    after = (CHANGED, dataclasses.replace(ORDERS, version="new"))
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, name)
        with pytest.raises(Interrupted):
            write_tables(tmp_path, after)
    assert read_tables(tmp_path) == (ITEMS, ORDERS), "who has read the list keeps it"
    known = dict(reading._read)
    assert {each.name for each in in_a_new_process(tmp_path)} == {"shop.items", "shop.orders"}
    reading._read.clear()
    reading._read.update(known)
    write_tables(tmp_path, after)
    assert read_tables(tmp_path) == in_a_new_process(tmp_path) == after


def test_a_writer_that_is_killed_before_its_first_head_leaves_no_list(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, HEAD)
        with pytest.raises(Interrupted):
            write_tables(tmp_path, [ORDERS])
    assert in_a_new_process(tmp_path) == ()
    write_tables(tmp_path, [ITEMS])
    assert in_a_new_process(tmp_path) == (ITEMS,), "the record of the other one is removed"


def test_a_reader_during_a_write_has_the_list_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path, [ORDERS, ITEMS])
    read_list(tmp_path)
    seen, replace = list[tuple[TableVersion, ...]](), durable_files.replace_file

    def replaced(path: Path, content: bytes) -> None:
        seen.append(read_tables(tmp_path))
        replace(path, content)

    monkeypatch.setattr(files, "replace_file", replaced)
    write_tables(tmp_path, [CHANGED, NOTES])
    assert seen == [(ITEMS, ORDERS)], "the records are written, and the head is not"
    assert read_tables(tmp_path) == (CHANGED, NOTES)


@every_shared_kind
def test_an_engine_that_lost_its_lease_does_not_write_the_list(location: LedgerLocation) -> None:
    first, second = TableListWriter(location, token=1), TableListWriter(location, token=2)
    first.write([ORDERS, ITEMS])
    second.write([ORDERS, CHANGED])
    with pytest.raises(StaleWriteError):
        first.write([ORDERS, NOTES])
    with pytest.raises(StaleWriteError):
        write_tables(location, [ORDERS])
    assert read_tables(location) == in_a_new_process(location) == (CHANGED, ORDERS)


@every_shared_kind
def test_a_takeover_completes_what_a_late_writer_left(
    location: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first engine is suspended before it writes its records. Meanwhile a second engine writes its list. Then the first engine writes
    its records, and its head is refused.
    """
    first, second = TableListWriter(location, token=1), TableListWriter(location, token=2)
    first.write([ORDERS, ITEMS])
    store, write = list_store(location), type(list_store(location)).write_all

    def late(texts: dict[str, str], *, token: int) -> None:
        monkeypatch.undo()
        second.write([ORDERS, ITEMS, NOTES])
        write(store, texts, token=token)

    monkeypatch.setattr(store, "write_all", late)
    with pytest.raises(StaleWriteError):
        first.write([ORDERS, CHANGED])
    second.write([ORDERS, ITEMS, NOTES])
    third = TableListWriter(location, token=3)
    third.write([ORDERS, ITEMS, NOTES])
    assert in_a_new_process(location) == (ITEMS, NOTES, ORDERS)


@every_shared_kind
def test_a_late_removal_leaves_a_record_that_a_later_engine_wrote(
    location: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first engine is suspended before it removes the record of a dropped table. Meanwhile a second engine creates the table again."""
    first, second = TableListWriter(location, token=1), TableListWriter(location, token=2)
    first.write([ORDERS, ITEMS])
    store, write = list_store(location), type(list_store(location)).write_all

    def late(texts: dict[str, str], *, token: int) -> None:
        write(store, texts, token=token)
        monkeypatch.undo()
        second.write([ORDERS])
        second.write([ORDERS, CHANGED])

    monkeypatch.setattr(store, "write_all", late)
    with pytest.raises(StaleWriteError):
        first.write([ORDERS])
    assert in_a_new_process(location) == (CHANGED, ORDERS)


@every_kind
def test_a_list_that_goes_back_after_a_failed_write_has_the_records_of_before(
    location: LedgerLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = TableListWriter(location), list_store(location)
    engine.write([ORDERS, ITEMS])

    def interrupted(texts: dict[str, str], *, token: int) -> None:
        for name, text in texts.items():
            store.put(name, text)
        raise MetaError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_all", interrupted)
        with pytest.raises(MetaError):
            engine.write([ORDERS, CHANGED])
    engine.write([ORDERS, ITEMS])  # The stream continues at a position before the statement.
    assert in_a_new_process(location) == (ITEMS, ORDERS)


def test_two_writers_in_files_see_what_the_other_one_wrote(tmp_path: Path) -> None:
    engine = TableListWriter(tmp_path)
    engine.write([ORDERS, ITEMS])
    write_tables(tmp_path, [ORDERS, NOTES])
    assert read_tables(tmp_path) == (NOTES, ORDERS)
    engine.write([ORDERS, ITEMS])
    assert read_tables(tmp_path) == in_a_new_process(tmp_path) == (ITEMS, ORDERS)


def test_a_fence_that_is_lost_prevents_each_write(tmp_path: Path) -> None:
    def lost() -> None:
        raise StaleWriteError("the lease is lost")

    write_tables(tmp_path, [ORDERS])
    with pytest.raises(StaleWriteError, match="the lease is lost"):
        TableListWriter(tmp_path, fence=lost).write([ITEMS])
    assert in_a_new_process(tmp_path) == (ORDERS,)
    TableListWriter(tmp_path, fence=lost).write([ORDERS])  # Nothing is to be written.


def old_list(tables: Iterable[TableVersion]) -> str:
    """Returns the list as an earlier version wrote it."""
    there = {"format": 2, "cascades": [], "tables": [], "types": {}}
    return json.dumps(there | {"tables": [table_to_json(table) for table in tables]})


def test_the_list_of_an_earlier_version_counts_until_the_head_replaces_it(tmp_path: Path) -> None:
    (tmp_path / HEAD).write_text(old_list([ORDERS, ITEMS]))
    assert read_tables(tmp_path) == (ITEMS, ORDERS)
    assert read_table(tmp_path, "shop.items") == read_list(tmp_path).by_name["shop.items"]
    assert (count_of_list(tmp_path), digest_of_list(tmp_path) != "") == (2, True)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, HEAD)
        with pytest.raises(Interrupted):
            write_tables(tmp_path, [CHANGED, NOTES])
    assert in_a_new_process(tmp_path) == (ITEMS, ORDERS)
    write_tables(tmp_path, [CHANGED, NOTES])
    assert in_a_new_process(tmp_path) == (CHANGED, NOTES)
    assert json.loads((tmp_path / HEAD).read_text())["format"] == head.FORMAT


def test_a_whole_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_tables(tmp_path, [ORDERS, ITEMS], [CASCADE], COMMENTS)
    there, path = read_list(tmp_path), tmp_path / "shop.json"
    path.write_text(whole.to_text(there))
    assert whole.read_whole(path) == there


def test_restored_files_are_read(tmp_path: Path) -> None:
    folder, copy = tmp_path / "shop", tmp_path / "copy"
    engine = TableListWriter(folder)
    engine.write([ORDERS, ITEMS])
    shutil.copytree(folder, copy)
    engine.write([ORDERS, CHANGED, NOTES])
    assert read_tables(folder) == (CHANGED, NOTES, ORDERS)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    assert read_tables(folder) == (ITEMS, ORDERS)
    engine.write([ORDERS, CHANGED])
    assert read_tables(folder) == in_a_new_process(folder) == (CHANGED, ORDERS)


def test_a_copy_of_a_record_is_no_table(tmp_path: Path) -> None:
    write_tables(tmp_path, [ORDERS, ITEMS])
    there = tmp_path / record_of("shop.items")
    shutil.copy(there, there.with_name("copy.json"))
    assert in_a_new_process(tmp_path) == (ITEMS, ORDERS)
    write_tables(tmp_path, [ORDERS, ITEMS])
    assert set((tmp_path / FOLDER).iterdir()) == {tmp_path / record_of(each.name) for each in (ORDERS, ITEMS)}


@pytest.mark.parametrize("odd", ["copied", "removed"])
def test_a_process_that_began_with_an_odd_record_sees_the_statements_after_it(tmp_path: Path, odd: str) -> None:
    engine, there = TableListWriter(tmp_path), tmp_path / record_of("shop.items")
    engine.write([ORDERS, ITEMS])
    if odd == "copied":
        shutil.copy(there, there.with_name("copy.json"))
    else:
        there.unlink()
    begun = in_a_new_process(tmp_path)
    assert begun == ((ITEMS, ORDERS) if odd == "copied" else (ORDERS,))
    engine.write([dataclasses.replace(ORDERS, version="new"), ITEMS, NOTES])
    assert {each.name: each.version for each in read_tables(tmp_path)} == {
        **{each.name: each.version for each in begun},
        "shop.orders": "new",
        "shop.notes": "jkl",
    }


def test_a_reader_that_missed_more_than_a_head_names_reads_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHANGED_MAX", 3)
    engine = TableListWriter(tmp_path)
    engine.write([ORDERS, ITEMS])
    read_list(tmp_path)
    for number in range(5):
        engine.write([ORDERS, dataclasses.replace(ITEMS, version=str(number))])
        changes = json.loads((tmp_path / HEAD).read_text())["changes"]
        assert sum(len(change["records"]) for change in changes) <= head.CHANGED_MAX
    assert {each.version for each in read_tables(tmp_path)} == {"abc", "4"}
