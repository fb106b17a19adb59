"""Tests that a table whose schema or foreign keys raise stops alone: when a history begins, when its parent is renamed, and when cascades
are searched.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.table_meta.change import foreign_keys
from sluice.cdc_engine.table_meta.history import cascades
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept import table_records
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, ForeignKey, Stopped, TableSchema
from tests.table_meta.history.test_ddl_mistakes import at

ID = DeclaredColumn(name="id", type="int", nullable=False)
PARENT = DeclaredColumn(name="p", type="int", nullable=True)
CHILDREN = tuple(f"child{number}" for number in range(6))
WRONG = (KeyError("_sluice_operation"), IndexError(), RecursionError("deep"), AssertionError(), TypeError("none"))


def shop() -> SchemaSnapshot:
    parent = TableSchema(database="shop", table="parent", charset="utf8mb4", columns=(ID,), key=("id",))
    key = ForeignKey(name="fk", columns=("p",), parent=("shop", "parent"), referenced=("id",), on_delete="CASCADE")
    children = (
        TableSchema(
            database="shop",
            table=name,
            charset="utf8mb4",
            columns=(ID, PARENT),
            key=("id",),
            foreign_keys=(dataclasses.replace(key, name=f"fk_{name}"),),
        )
        for name in CHILDREN
    )
    return SchemaSnapshot(
        DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), (parent, *children)
    )


def begun(folder: Path) -> TableHistory:
    made = TableHistory(folder / "schema.jsonl", lambda database, _: database == "shop")
    made.seed(shop(), at(100))
    return made


def raising(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, odd: set[str]) -> None:
    """Makes the function `name` of `owner` raise if its first argument of type TableSchema is one of the tables `odd`."""
    real, chance = getattr(owner, name), random.Random(repr(sorted(odd)))  # noqa: S311  the errors of a test

    def maybe(*given: Any, **named: Any) -> Any:
        schema = next((each for each in given if isinstance(each, TableSchema)), None)
        if schema is not None and schema.table in odd:
            raise chance.choice(WRONG)
        return real(*given, **named)

    monkeypatch.setattr(owner, name, maybe)


@pytest.fixture(params=range(8))
def odd(request: pytest.FixtureRequest) -> set[str]:
    chance = random.Random(request.param)  # noqa: S311  the tables of a test
    return set(chance.sample(CHILDREN, chance.randint(1, 5)))


@pytest.mark.found
def test_a_table_whose_schema_cannot_be_kept_stops_alone(
    odd: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if one table raised while the history began, the destination did not start."""
    raising(monkeypatch, table_records, "table_record", odd)
    known = begun(tmp_path)
    states = {name: known.state("shop", name, at(100)) for name in ("parent", *CHILDREN)}
    assert {name for name, state in states.items() if isinstance(state, Stopped)} == odd
    reasons = [state.reason for state in states.values() if isinstance(state, Stopped)]
    assert all("a defect of Sluice" in reason for reason in reasons)
    assert {each.table for each in known.versions(at(100))} == {"parent", *CHILDREN} - odd


@pytest.mark.found
def test_a_table_without_a_version_is_left_out_of_the_list_of_tables(
    odd: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if one table raised, the list of all tables was not written."""
    known = begun(tmp_path)
    real = TableSchema.version
    monkeypatch.setattr(TableSchema, "version", lambda self: real(self) if self.table not in odd else {}[self.table])
    assert {each.table for each in known.versions(at(100))} == {"parent", *CHILDREN} - odd


@pytest.mark.found
def test_a_foreign_key_that_raises_puts_its_child_in_doubt(
    odd: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if the foreign keys of one table raised, no row event of any table could be read."""
    raising(monkeypatch, cascades, "_unlike", odd)
    found = begun(tmp_path).cascades("shop", "parent")
    assert {each.child[1] for each in found} == set(CHILDREN), "none is lost: its child would silently keep rows"
    assert {each.child[1] for each in found if "a defect of Sluice" in each.doubt} == odd


@pytest.mark.found
def test_a_child_whose_foreign_keys_raise_stops_when_its_parent_is_renamed(
    odd: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: the renamed parent stopped because of an error in one of its children. The child continued and
    referred to the old name.
    """
    known = begun(tmp_path)
    raising(monkeypatch, foreign_keys, "pointing", odd)
    changes = known.apply("RENAME TABLE parent TO elder", "shop", at(200))
    stops = {each.table for each in changes if each.kind is TableChangeKind.STOPPED and each.table in CHILDREN}
    assert stops == odd
    for name in set(CHILDREN) - odd:
        state = known.state("shop", name, at(200))
        assert isinstance(state, TableSchema)
        assert state.foreign_keys[0].parent == ("shop", "elder")
