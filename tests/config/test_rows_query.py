"""Tests that `canal_server.rows_query` is refused if the SQL texts of statements would show what other settings hide,
or would be missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError

pytestmark = pytest.mark.seeds
SHOWN = "canal_server: {port: 11111, rows_query: true}"


def written(root: Path, *lines: str) -> Path:
    (root / "destinations").mkdir(parents=True)
    (root / "sluice.yaml").write_text("data_dir: data\nlake: lake\n")
    text = "\n".join(["source: {user: root}", "include: shop\\..*", SHOWN, *lines, ""])
    (root / "destinations" / "shop.yaml").write_text(text)
    return root


def test_texts_are_shown_where_nothing_hides_values(tmp_path: Path) -> None:
    assert load_config(written(tmp_path)).destinations["shop"].canal_server.rows_query


@pytest.mark.parametrize(
    "line",
    [
        "tables: {shop.orders: {masks: {email: 'null'}}}",
        "tables: {shop.orders: {rows: n > 1}}",
        "column_exclude: shop.orders:email",
        "column_include: shop.orders:id",
        "stream: shared",
    ],
)
def test_texts_are_refused_with_masks_and_on_a_shared_connection(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"canal_server\.rows_query"):
        load_config(written(tmp_path, line))


def test_a_group_shows_none(tmp_path: Path) -> None:
    (written(tmp_path) / "destinations" / "both.yaml").write_text(f"members: [shop]\n{SHOWN}\n")
    with pytest.raises(ConfigurationError, match="rows_query: consumers of a group"):
        load_config(tmp_path)
