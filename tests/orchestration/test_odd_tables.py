"""Tests a table that raises while assets are defined: it has no asset, and the engine's status names it. The other tables have assets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list import sentences
from sluice.orchestration import assets, code_location
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.checks import stopped
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.sensor.tick import DestinationSensor
from sluice.orchestration.sensors import engine_sensor
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

NAMES = tuple(f"shop.t{number}" for number in range(8))
WRONG = (KeyError("_sluice_operation"), ValueError("odd"), AssertionError(), TypeError("none"))
STAGES = [(assets, "_delta_out"), (assets, "owners_of"), (assets, "source_key"), (stopped, "quarantines")]


def name_among(given: tuple[Any, ...]) -> str:
    """Returns the table for which a function of STAGES is called."""
    for each in given:
        if isinstance(each, TableVersion):
            return each.name
        if isinstance(each, str) and each in NAMES:
            return each
    return ""


def raising(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, odd: dict[str, Exception]) -> None:
    real = getattr(owner, name)

    def maybe(*given: Any, **named: Any) -> Any:
        if (error := odd.get(name_among(given))) is not None:
            raise error
        return real(*given, **named)

    monkeypatch.setattr(owner, name, maybe)


def lines(monkeypatch: pytest.MonkeyPatch) -> list[DestinationSensor]:
    """Returns a list to which the arguments of each new engine sensor are added."""
    made: list[DestinationSensor] = []

    def sensor(line: DestinationSensor, *rest: Any) -> Any:
        made.append(line)
        return engine_sensor(line, *rest)

    monkeypatch.setattr(code_location, "engine_sensor", sensor)
    return made


def built(root: Path) -> tuple[SluiceConfig, FakePorts]:
    config = make_config(root)
    write_tables(config.destination_dir("shop"), NAMES)
    return config, make_fake_ports(config, NAMES)


@pytest.mark.found
@pytest.mark.parametrize("seed", range(8))
def test_a_table_that_raises_while_assets_are_defined_has_none(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if one table raised while assets were defined, the whole code location had no definitions."""
    chance = random.Random(seed)  # noqa: S311  the tables of a test
    odd: dict[str, Exception] = {name: chance.choice(WRONG) for name in chance.sample(NAMES, chance.randint(1, 7))}
    raising(monkeypatch, *STAGES[seed % len(STAGES)], odd)
    made = lines(monkeypatch)
    config, ports = built(tmp_path)
    found = build_definitions(config, ports.ports())
    keys = found.resolve_asset_graph().get_all_asset_keys()
    for table in NAMES:
        assert (delta_key("shop", table) in keys) is (table not in odd)
    line = made[-1]
    assert set(line.tables) == set(NAMES) - set(odd)
    reported = line.conf_troubles()
    assert {sentence.split()[0] for sentence in reported} == set(odd), "the engine's status names them"
    assert all("no asset" in sentence for sentence in reported)


@pytest.mark.found
def test_what_concerns_no_single_table_still_keeps_definitions_from_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test for defect 25: a fault of the code location is not treated as a fault of one of its tables."""

    def broken(*_: object) -> None:
        raise RuntimeError("no schedules")

    monkeypatch.setattr(code_location, "maintain_schedules", broken)
    config, ports = built(tmp_path)
    with pytest.raises(RuntimeError, match="no schedules"):
        build_definitions(config, ports.ports())


@pytest.mark.found
def test_foreign_keys_that_cannot_be_described_keep_no_asset_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if the description of one foreign key raised, no table had an asset."""

    def broken(*_: object) -> None:
        raise KeyError("fk")

    monkeypatch.setattr(sentences, "foreign_key_notes", broken)
    config, ports = built(tmp_path)
    keys = build_definitions(config, ports.ports()).resolve_asset_graph().get_all_asset_keys()
    assert {source_key("shop", name) for name in NAMES} | {delta_key("shop", name) for name in NAMES} <= keys
