"""Provides a folder of modules for each test of transforms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.instance.tables import transform_functions, transform_modules
from tests.instance.transforms.fix_modules import UPPER, write


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a folder from which functions are imported. At first it contains `shop_rows`."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(transform_functions, "_FUNCTIONS", {})
    monkeypatch.setattr(transform_modules, "_MODULES", {})
    monkeypatch.delitem(sys.modules, "shop_rows", raising=False)
    write(folder, UPPER)
    yield folder
    sys.modules.pop("shop_rows", None)
