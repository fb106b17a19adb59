"""Tests that `reader` is the only setting that names a replica, and that the former settings name it in their errors."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.config import DestinationConfig

READER = {"host": "replica.example.com", "user": "sluice"}


@pytest.mark.managed
@pytest.mark.parametrize("section", ["snapshots", "equality"])
def test_the_former_settings_name_the_new_one(section: str) -> None:
    record = {"name": "shop", "source": {"user": "root"}}
    assert DestinationConfig.model_validate({**record, "reader": READER}).reader is not None
    with pytest.raises(ValueError, match="source was removed: name the replica in `reader`, next to `source`"):
        DestinationConfig.model_validate({**record, section: {"source": READER}})
