"""Tests the files for runs on other hosts, which the parser's thread writes into a store. If the store does not answer for a moment, the
stream continues.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.cdc_engine.destination_files import for_runs
from sluice.cdc_engine.errors import NotSharedError
from sluice.cdc_engine.parser.stream.reconnect import Attempts
from sluice.object_stores.errors import StoreError


class Away:
    """A store that does not answer."""

    def write(self, name: str, content: bytes) -> None:
        raise StoreError(f"{name}, {len(content)} bytes: nobody answers")


def test_s3_a_store_that_is_away_has_the_stream_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_runs, "as_location", lambda _: SimpleNamespace(is_apart=True))
    monkeypatch.setattr(for_runs, "_folder", lambda _: Away())
    with pytest.raises(NotSharedError, match="nobody answers; Sluice tries again") as reported:
        for_runs.share(tmp_path, "tables.json", b"[]")
    assert Attempts().tried_again(reported.value)
