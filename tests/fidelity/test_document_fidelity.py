"""Tests that docs/fidelity.md contains everything that the catalogue, the register of types and the readers of declared types know."""

from __future__ import annotations

import re

import pytest

from sluice.cdc_engine.binlog.column_types import type_of
from sluice.cdc_engine.binlog.column_types.entry import REGISTER, REGISTER_BY_NAME
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.table_meta.ddl import declared_type as declared
from sluice.cdc_engine.table_meta.ddl.declared_type import declared_type
from sluice.cdc_engine.table_meta.ddl.lexer import UnreadableError
from sluice.cdc_engine.table_meta.schema import DeclaredColumn
from tests.fidelity.cases import CASES
from tests.fidelity.catalogue import KINDS, Kind
from tests.fidelity.document import PAGE, rendered

# Type codes that a table map may have, but no column of the catalogue has: older formats, other sizes of a blob, and types of servers
# that are not tested.
NOT_IN_CATALOGUE = {
    *(TypeCode.TIMESTAMP, TypeCode.DATETIME, TypeCode.TIME, TypeCode.VAR_STRING),
    *(TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB, TypeCode.VECTOR),
}
OTHER_NAMES = {"vector", "serial", "geomcollection"}


def column(kind: Kind) -> Column:
    text = kind.declared.removesuffix(" NULL").removesuffix(" zerofill")
    found = declared_type(text)
    charset = "utf8mb4" if found.has_charset else "binary" if found.is_binary_string else ""
    return DeclaredColumn(name="c", type=found.text, charset=charset).column()


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text() == rendered(), "python -m tests.fidelity.document"


def test_every_test_that_the_page_names_is_there() -> None:
    tests, code = (PAGE.parents[1] / name for name in ("tests", "cdc_engine"))
    paths = set(re.findall(r"`(?:tests/|(corpus/))?([\w/]+\.(?:py|sql|txt))`", rendered()))
    assert len(paths) > 30
    there = {path.relative_to(room).as_posix() for room in (tests, code) for path in room.rglob("*.*")}
    for corpus, path in sorted(paths):
        named = f"table_meta/corpus/{path}" if corpus else path
        assert any(each == named or each.endswith(f"/{named}") for each in there), path


def test_every_case_has_a_test_or_a_statement_that_shows_it() -> None:
    tests = PAGE.parents[1] / "tests"
    texts = {file: (tests / file).read_text() for _, _, file, _ in CASES}
    missing = [case for _, case, file, piece in CASES if _searched(piece) not in texts[file]]
    assert not missing
    assert {number for number, *_ in CASES} == {str(number) for number in range(1, 12)}


def _searched(piece: str) -> str:
    return f"def {piece}(" if piece.startswith("test_") else piece


@pytest.mark.servers
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "nchar" not in kind.declared], ids=lambda kind: kind.declared[:40]
)
def test_a_declared_type_becomes_the_delta_type_of_the_page(kind: Kind) -> None:
    on_mariadb = kind.declared == "json" and "mariadb114" in kind.servers  # There it is a longtext.
    assert on_mariadb or type_of(column(kind)).spark == kind.delta


def test_every_type_that_is_decoded_is_in_the_catalogue() -> None:
    codes = {TypeCode(column(kind).type_code) for kind in KINDS if "nchar" not in kind.declared}
    assert {TypeCode(code) for code in REGISTER} - codes == NOT_IN_CATALOGUE


def test_a_uuid_of_an_old_server_is_not_read_as_one_of_today() -> None:
    with pytest.raises(UnreadableError, match="FORCE"):
        declared_type("uuid /* old */")


def test_every_type_that_can_be_declared_is_in_the_catalogue() -> None:
    bases = {kind.declared.partition("(")[0].partition(" ")[0] for kind in KINDS}
    known = set(declared._NAMES.values())
    assert known - bases - OTHER_NAMES == set()
    assert set(REGISTER_BY_NAME) <= bases
