"""Tests a port that another process uses: the destination still runs, the port is named and tried again, and it is released once."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from sluice.cdc_engine.config import CanalServerConfig, load_config
from sluice.cdc_engine.errors import ConfigurationError, LeaseLostError, NotStartedError
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.served import Serving
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.health import Vitals, troubles
from sluice.console.toolchain.ports import free_port


def nobody() -> Consumers:
    raise NotStartedError("destination:shop should start first")


def reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_canal_port_of_another_program_is_reported_and_opened_once_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        port = other_server.getsockname()[1]
        serving = Serving(CanalServerConfig(port=port), "shop", nobody)
        serving.begin()
        assert f"cannot listen at 127.0.0.1:{port}" in serving.trouble
        (said,) = troubles(Vitals(destination="shop", serving=serving.trouble))
        assert said == serving.trouble
        serving.again()
        assert serving.trouble
    serving.again()
    assert not serving.trouble
    assert reached(port)
    serving.end()
    assert not reached(port)
    serving.begin()
    assert not reached(port)


def test_consumers_of_an_engine_without_its_lease_are_served_by_no_host(tmp_path: Path) -> None:
    """A host that was paused does not know yet that it lost the lease. A consumer that is served there would get what another host also
    sends.
    """
    (tmp_path / "destinations").mkdir()
    (tmp_path / "sluice.yaml").write_text(f"data_dir: {tmp_path / 'data'}\n")
    (tmp_path / "destinations" / "shop.yaml").write_text("source: {user: u}\n")
    engine = Engine(load_config(tmp_path), "shop")
    engine._parts = SimpleNamespace(consumers="those beside the lake")  # type: ignore[assignment]
    with pytest.raises(LeaseLostError):
        str(engine.consumers)
    engine.directory.mkdir(parents=True)
    assert engine._lease.try_acquire()
    assert str(engine.consumers) == "those beside the lake"
    engine._lease.release()


@pytest.mark.found
def test_a_start_that_fails_leaves_no_port_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 69: an invalid rule of a broker ended the start, but the port for Canal clients stayed open and answered with errors."""
    port = free_port()
    (tmp_path / "destinations").mkdir()
    (tmp_path / "sluice.yaml").write_text(f"data_dir: {tmp_path / 'data'}\n")
    broker = "{kind: kafka, servers: 'nowhere:1', topic: t, client_id: 1002, dynamic_topic: 'a:['}"
    (tmp_path / "destinations" / "shop.yaml").write_text(
        f"source: {{user: u}}\ncanal_server: {{port: {port}}}\nbrokers: [{broker}]\n"
    )
    parts, engine = mock.MagicMock(), Engine(load_config(tmp_path), "shop")
    monkeypatch.setattr("sluice.cdc_engine.instance.engine.engine.make_parts", lambda *_, **__: parts)
    with pytest.raises(ConfigurationError, match="is not a regular expression"):
        engine.start()
    assert not reached(port)
    assert not engine.holds_lease
    parts.parser.stop.assert_called()
    parts.meta.close.assert_called_once()


def test_a_canal_server_that_becomes_wrong_meanwhile_is_a_trouble_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HASH", "e3619321c1a937c46a0d8bd1dac39f93b27d4458")
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        port = other_server.getsockname()[1]
        serving = Serving(CanalServerConfig(port=port, user="canal", password_hash="$HASH"), "shop", nobody)  # noqa: S106
        serving.begin()
        monkeypatch.setenv("HASH", "none")
        serving.again()
        assert "HASH has no hash of a password" in serving.trouble
    monkeypatch.setenv("HASH", "e3619321c1a937c46a0d8bd1dac39f93b27d4458")
    serving.again()
    assert not serving.trouble
    assert reached(port)
    serving.end()


def test_a_canal_server_that_conf_describes_wrongly_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no password"):
        Serving(CanalServerConfig(port=1, user="canal"), "shop", nobody).begin()
