"""Keeps pandas out of an engine's process. The code server calls it before its engines start.

pyarrow imports pandas with its first conversions wherever it is installed, and Spark's client brings it. An engine has no use for it, and
would carry 57 MB and spend 0.4 s of each start on it. Runs merge in processes of their own, which have it.
"""

from __future__ import annotations

import sys


class _WithoutPandas:
    """A finder that knows one thing: there is no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of an engine's process", name=name)


def leave_pandas_out() -> None:
    """From now on whoever asks for pandas in this process is told that it is not installed. Without effect where it is loaded already."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())
