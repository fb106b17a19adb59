"""Tests that `sluice consumer` works while another file of conf/ is wrong."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.keeping.in_use import as_kept, keep, kept_file
from sluice.console.main import app
from tests.console.conftest import RUNNER, Installation


@pytest.mark.found
def test_a_consumer_is_forgotten_although_another_file_of_conf_is_wrong_admin(installation: Installation) -> None:
    """Defect 1238: `sluice consumer forget shop` refused to work if the file of another destination was wrong."""
    installation.destination(1).mkdir(parents=True)
    keep(kept_file(installation.data, "code-server"), as_kept(installation.conf))
    (installation.conf / "destinations" / "crm.yaml").write_text("source: {prot: 3306}\n")
    answer = RUNNER.invoke(app, ["consumer", "forget", "shop", "1001", "--yes"])
    assert isinstance(answer.exception, ActRefusedError), answer.exception
    assert "shop has no consumer 1001" in str(answer.exception)
    assert "destinations/crm.yaml in conf/ is not used" in answer.stderr
