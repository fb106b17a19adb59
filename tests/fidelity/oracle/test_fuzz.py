"""Reads damaged binlogs of real servers in separate processes: no crash, no endless loop, bounded memory, and always a named error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzzing.fuzz import fuzz, write_corpus
from sluice.console.toolchain.database.server import DatabaseServer

pytestmark = pytest.mark.servers

SEED = 4


@pytest.mark.parametrize(("name", "seconds"), [("mysql80", 15), ("mariadb114", 10)])
def test_damaged_events_end_in_rows_or_named_errors_fidelity(
    name: str, seconds: float, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    finding, rounds = fuzz(write_corpus(server, tmp_path), SEED, seconds)
    assert finding is None, str(finding)
    assert rounds > 20
