"""Tests that `sluice check` examines every source of a destination, also standby sources."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.console.check import check_sources
from sluice.console.conf_check import unset_passwords
from sluice.console.toolchain.ports import free_port


def test_failover_check_names_the_unset_passwords_of_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_STANDBY", raising=False)
    monkeypatch.setenv("SLUICE_MASTER", "x")
    sources = [{"password": "$SLUICE_MASTER"}, {"password": "$SLUICE_STANDBY"}]
    assert unset_passwords({"sources": sources}) == ["SLUICE_STANDBY"]
    assert unset_passwords({"source": sources[1]}) == ["SLUICE_STANDBY"]
    assert unset_passwords({"sources": 7, "source": "none"}) == []


def test_failover_check_queries_the_standby_sources() -> None:
    ports = [free_port(), free_port()]
    sources = [{"user": "root", "port": port} for port in ports]
    destination = DestinationConfig.model_validate({"name": "shop", "sources": sources})
    found = list(check_sources(destination))
    assert [str(port) in each.what for port, each in zip(ports, found, strict=True)] == [True, True]
    assert all(each.problems for each in found)
