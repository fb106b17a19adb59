"""Keeps pandas out of an engine's process. The code server calls it before its engines start.

pyarrow looks for pandas at its first conversion of anything and keeps it if it is there; Spark's client brings it. An engine has no use
for it, and would carry 57 MB and spend 0.4 s of each start on it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _WithoutPandas:
    """A finder that knows one thing: there is no pandas."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=name)
        return None


def leave_pandas_out() -> None:
    """From now on pyarrow does without pandas in this process. Others may still import it. Harmless where it is loaded already."""
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa  # noqa: PLC0415

        pa.array([], pa.null())  # here pyarrow looks, once in a process
    finally:
        sys.meta_path.remove(finder)
