"""Tests the ledger of a group: one record has the positions of all members. A ledger without a group has none of the fields of groups."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sluice.cdc_engine.meta.ledger import GroupConsumer, Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from sluice.cdc_engine.position import GroupPosition, Position
from tests.fix_ledgers import FileLedger

EAST = Position(epoch=1, file="bin.000003", offset=400, gtid_set="a:1-5", server_uuid="a", time_us=7)
WEST = Position(epoch=2, file="bin.000001", offset=154, time_us=5)
CURSOR = GroupPosition(members=(("east", EAST), ("west", WEST)), barrier_us=9, late=3)
CONSUMER = GroupConsumer(client_id=1001, filter=r"shop\..*", cursor=CURSOR)
LEDGER = Ledger(ledger_id="3f2a91c04be7").with_group_consumer(CONSUMER)


def test_group_cursors_of_all_members_are_one_record(tmp_path: Path) -> None:
    record = json.loads(ledger_to_text(LEDGER))
    (written,) = record["group_consumers"]
    assert sorted(written["cursor"]["members"]) == ["east", "west"]
    FileLedger(tmp_path).update(lambda _: LEDGER)
    found = FileLedger(tmp_path).ledger
    assert found.group_consumers == (CONSUMER,)
    assert found.positions_of("west") == (WEST,)
    assert found.positions_of("north") == ()
    assert not found.without_consumer(1001).group_consumers


def test_group_only_ledgers_have_the_setting_for_consumers_of_groups() -> None:
    text = ledger_to_text(Ledger(ledger_id="3f2a91c04be7"))
    assert "group_consumers" not in json.loads(text)
    assert ledger_from_text(text, "shop").group_consumers == ()


def test_group_ledgers_have_an_identity_only_of_consumers_whose_position_is_stored() -> None:
    known = dataclasses.replace(CONSUMER, client_id=1002, identity="3f2a91c04be7")
    text = ledger_to_text(LEDGER.with_group_consumer(known))
    assert ["identity" in each for each in json.loads(text)["group_consumers"]] == [False, True]
    assert ledger_from_text(text, "all").group_consumers == (CONSUMER, known)


@pytest.mark.parametrize(
    ("word", "value"), [("members", [["east", {}]]), ("members", {"east": {"file": "f"}}), ("late", "3")]
)
def test_group_invalid_cursors_are_refused(word: str, value: object) -> None:
    record = json.loads(ledger_to_text(LEDGER))
    record["group_consumers"][0]["cursor"][word] = value
    with pytest.raises(ValueError, match="Position"):
        ledger_from_text(json.dumps(record), "all")
