"""Tests functions of transforms: from which version of an edited file they come, and calls that do not return in time."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.row_rules.transform import TransformFailedError
from sluice.cdc_engine.config.rows import TransformConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.tables import transform_functions, transform_modules
from sluice.cdc_engine.instance.tables.transform_functions import transform_of

pytestmark = pytest.mark.seeds

ROWS: Any = pa.record_batch({"note": ["a"]})
EDITION = """
def orders(rows): return "EDITION"
def lines(rows): return "EDITION"
"""
WAITS = """
import threading
done = threading.Event()
def orders(rows):
    if rows.num_rows:
        done.wait()
    return rows
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the file of the module `shop_notes`, which is not imported yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(transform_functions, "_FUNCTIONS", {})
    monkeypatch.setattr(transform_modules, "_MODULES", {})
    yield tmp_path / "shop_notes.py"
    sys.modules.pop("shop_notes", None)


def made(function: str, table: str = "shop.orders", destination: str = "east", **settings: Any) -> Any:
    given = {"function": f"shop_notes:{function}", "reads": ["note"], "writes": ["note"], **settings}
    return transform_of(table, TransformConfig.model_validate(given), destination)


def test_functions_of_an_edited_module_are_of_one_import_of_it(module: Path) -> None:
    """Otherwise a function that conf/ names only after the edit would be the old one, with the identity of the new file."""
    module.write_text(EDITION.replace("EDITION", "first"))
    before = made("orders")
    module.write_text(EDITION.replace("EDITION", "later"))
    added = made("lines")
    imported = sys.modules["shop_notes"]
    edited = made("orders")
    assert sys.modules["shop_notes"] is imported
    assert (added.call(ROWS), edited.call(ROWS)) == ("later", "later")
    assert added.identity == edited.identity != before.identity
    assert before.call(ROWS) == "first", "an engine that runs keeps its function"


def test_a_module_that_something_else_imported_before_an_edit_is_imported_again(module: Path) -> None:
    module.write_text(EDITION.replace("EDITION", "first"))
    importlib.import_module("shop_notes")
    module.write_text(EDITION.replace("EDITION", "later"))
    assert made("orders").call(ROWS) == "later"


def test_a_module_that_was_not_edited_is_not_imported_again(module: Path) -> None:
    """After a new import, other users of the module would have other objects than the function."""
    settings = TransformConfig.model_validate({"function": "json:dumps", "reads": ["note"], "writes": ["note"]})
    assert transform_of("shop.orders", settings).identity
    assert sys.modules["json"] is json


def test_a_file_that_changes_while_it_is_imported_has_no_identity(module: Path) -> None:
    edits = "with open(__file__, 'a') as file:\n    file.write('# edited')"
    module.write_text(EDITION + edits)
    with pytest.raises(
        ConfigurationError, match="the file of the module shop_notes changed during its import: start Sluice again"
    ):
        made("orders")
    module.write_text(EDITION)
    assert made("orders").call(ROWS) == "EDITION"


def test_a_late_call_for_one_table_does_not_fail_the_others_with_the_same_function(module: Path) -> None:
    """Tables of one name in two destinations are two tables."""
    module.write_text(WAITS)
    hung = made("orders", seconds_max=0.1)
    done: threading.Event = sys.modules["shop_notes"].done
    nothing: Any = ROWS.slice(0, 0)
    try:
        with pytest.raises(TransformFailedError, match="did not return within"):
            hung.call(ROWS)
        with pytest.raises(
            TransformFailedError, match="an earlier call of the function for this table has not returned yet"
        ):
            made("orders", seconds_max=0.1).call(nothing)
        assert made("orders", table="shop.lines").call(nothing) == nothing
        assert made("orders", destination="west").call(nothing) == nothing
    finally:
        done.set()
    for late in transform_functions._FUNCTIONS["shop_notes:orders"].late.values():
        late.join()
    assert hung.call(nothing) == nothing
