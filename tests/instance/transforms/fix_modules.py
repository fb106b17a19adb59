"""Modules with functions for transforms."""

from __future__ import annotations

from pathlib import Path

HEAD = "import threading\nimport pyarrow as pa\nimport pyarrow.compute as pc\n"
UPPER = """
def orders(rows):
    return pa.record_batch({"note": pc.utf8_upper(rows["note"]), "size": pc.utf8_length(rows["note"])})
"""


def write(folder: Path, text: str) -> None:
    (folder / "shop_rows.py").write_text(HEAD + text)
