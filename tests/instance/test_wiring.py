"""Tests that a failed start leaves nothing open, what a start passes to the comparison of settings, and which consumers it forgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.instance.engine import wiring
from sluice.cdc_engine.instance.engine.consumer_wiring import review_of
from sluice.cdc_engine.meta.forget_requests import forgets_requested, request_forget
from sluice.cdc_engine.table_meta.history.history import TableHistory
from tests.fix_ledgers import CONSUMER, LEDGER, MemoryLedger
from tests.table_meta.history.test_ddl_statements import SNAPSHOT, at


def test_fault_the_ledger_is_closed_where_the_rest_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Meta(MemoryLedger):
        def close(self) -> None:
            closed.append(self)

    def refuse(*_: object) -> None:
        raise MetaError("the schema history cannot be read")

    monkeypatch.setattr(wiring, "open_meta", lambda *_: Meta())
    monkeypatch.setattr(wiring, "history_kept", refuse)
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}, "include": "shop\\..*"})
    with pytest.raises(MetaError, match="schema history"):
        wiring.make_parts(config, tmp_path, FileLease(tmp_path), on_state=print, on_start=print)
    assert len(closed) == 1


class WiredError(Exception):
    """Ends the making of an engine's parts at the call that a test examines."""


@pytest.mark.found
def test_the_start_of_an_engine_names_the_tables_that_were_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1094: the comparison of settings treated a dropped table as a table that has stopped."""
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}, "include": "shop\\..*"})
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, review_of(config, tmp_path))
    history.seed(SNAPSHOT, at(100))
    history.apply("DROP TABLE shop.orders", "shop", at(101))
    found: dict[str, Collection[str]] = {}

    def compare(*given: Any, dropped: Collection[str], **_: object) -> None:
        found.update(known=given[-1], dropped=dropped)
        raise WiredError

    replaced = {
        "open_meta": MemoryLedger,
        "history_kept": tmp_path / "schema.jsonl",
        "known_begin": at(101),
        "store_of": None,
        "remove_strays": None,
    }
    for name, result in replaced.items():
        monkeypatch.setattr(wiring, name, lambda *_, result=result, **__: result() if callable(result) else result)
    monkeypatch.setattr(wiring, "take_up_new_tables", compare)
    monkeypatch.setattr(wiring, "refuse_lost_ledger", lambda *_: None)
    with pytest.raises(WiredError):
        wiring.make_parts(config, tmp_path, FileLease(tmp_path), on_state=print, on_start=print)
    assert set(found["dropped"]) == {"shop.orders"}
    assert {"shop.orders", "shop.items"} <= set(found["known"])


@pytest.mark.found
def test_the_start_of_an_engine_forgets_consumers_before_those_of_conf_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1185: with the maximum number of consumers in the ledger and a new broker in conf/, the engine did not start. The advice was
    `sluice consumer forget`, but only an engine that had started executed the request.
    """
    meta = MemoryLedger(LEDGER.with_consumer(CONSUMER).with_consumer(dataclasses.replace(CONSUMER, client_id=8)))
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}, "include": "shop\\..*"})
    request_forget(tmp_path, CONSUMER.client_id)

    def wired(*_: object, **__: object) -> None:
        raise WiredError

    monkeypatch.setattr(wiring, "open_meta", lambda *_: meta)
    monkeypatch.setattr(wiring, "refuse_lost_ledger", lambda *_: None)
    monkeypatch.setattr(wiring, "known_begin", wired)
    with pytest.raises(WiredError):
        wiring.make_parts(config, tmp_path, FileLease(tmp_path), on_state=print, on_start=print)
    assert [each.client_id for each in meta.ledger.consumers] == [8]
    assert forgets_requested(tmp_path) == ()
