"""Runs on hosts without the engine's files: they take their batch over the connection of ticks, with TLS, and do not drain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import BatchNotFoundError
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import RunEngineAwayError
from sluice.orchestration.base.testing import FakeEngine, FakeHost
from sluice.orchestration.rpc.remote_host import RemoteHost
from sluice.orchestration.rpc.run_elsewhere import RunElsewhere
from tests.certificates import make_certificate
from tests.orchestration.rpc.fix_host import config_at, server_of


class House:
    """An engine behind TLS, and a run that has nothing but conf/."""

    def __init__(self, root: Path) -> None:
        certificate, key = make_certificate(root)
        self.engine = FakeEngine(root)
        self.engines = FakeHost(self.engine)
        self.server = server_of(self.engines, config_at(root, 1, certificate=certificate, key=key))
        self.caller = RemoteHost(config_at(root, self.server.port, authority=certificate))
        self.run = RunElsewhere(self.caller, "shop")

    def batch(self) -> BatchReference:
        self.engine.capture(5)
        batch = self.engine.hand_out(0.0)
        assert batch is not None
        return BatchReference.of("shop", batch)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.caller.close()
    made.server.close()


def test_ha_a_run_elsewhere_takes_its_batch_over_tls(house: House) -> None:
    reference = house.batch()
    house.run.take(reference, append=True)
    house.engine.head = None
    with pytest.raises(BatchNotFoundError):
        house.run.take(reference, append=True)


def test_ha_a_run_elsewhere_merges_one_batch_and_leaves_its_ack_to_ticks(house: House) -> None:
    reference = house.batch()
    with pytest.raises(RunEngineAwayError, match="merges one batch"):
        house.run.hand_out(0.0)
    with pytest.raises(RunEngineAwayError, match="the ticks settle"):
        house.run.ack(reference)
    assert house.engine.acked == []


def test_ha_an_engine_host_that_is_away_is_said_so(house: House) -> None:
    reference = house.batch()
    house.server.close()
    with pytest.raises(RunEngineAwayError, match="does not answer"):
        house.run.take(reference, append=True)
