"""Tests engines in another process: who may call them, what is reported while no host answers, and that callers find a host that comes
back.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError

from sluice.cdc_engine.config import EngineConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import (
    BatchNotFoundError,
    ConfigurationError,
    EngineStartingError,
    EngineStoppedError,
    LeaseLostError,
    PositionLostError,
    StagingError,
)
from sluice.cdc_engine.states import TableState
from sluice.orchestration.base.ports import EngineAwayError, EngineHandle, EngineSnapshot
from sluice.orchestration.base.testing import FakeEngine, FakeHost, FakeState, position
from sluice.orchestration.rpc import connection, remote_host
from sluice.orchestration.rpc.access import TOKEN_FILE
from sluice.orchestration.rpc.connection import Connection
from sluice.orchestration.rpc.methods import METHODS, STATUS, RemoteState
from sluice.orchestration.rpc.remote_host import RemoteEngine, RemoteHost
from sluice.orchestration.rpc.served_engine import HAND_OUT_SECONDS_MAX, ServedEngine
from sluice.orchestration.rpc.wire import EngineRefusedError
from tests.certificates import make_certificate
from tests.orchestration.rpc.fix_host import called, config_at, server_of
from tests.waiting import wait_for

VARIABLE = "SLUICE_TEST_TOKEN"
TOKEN = "a token that both sides know"  # noqa: S105


class EngineAndCaller:
    """An engine and its caller."""

    def __init__(self, root: Path, host: RemoteHost, engines: FakeHost) -> None:
        self.root, self.host, self.engines, self.engine = root, host, engines, engines.engine

    def handle(self) -> RemoteEngine:
        return self.host.get_or_start("shop")


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[EngineAndCaller]:
    engines = FakeHost(FakeEngine(tmp_path / "data" / "engine" / "shop"))
    with called(engines, tmp_path) as host:
        yield EngineAndCaller(tmp_path, host, engines)


def test_ha_every_promise_of_an_engine_can_be_called_from_elsewhere() -> None:
    promised = {name for name in vars(EngineHandle) if not name.startswith("_")} - {"directory"}
    assert set(METHODS) == promised | {"conf_digest", "offer", "take_by_reference", "ack_by_reference"}
    for method in METHODS.values():
        for engine in (RemoteEngine, ServedEngine, EngineHandle):
            if method.name in vars(engine):
                named = [each for each in inspect.signature(vars(engine)[method.name]).parameters if each != "self"]
                assert named == list(method.arguments), f"{method.name} of {engine.__name__}"
    assert {each for each in vars(EngineSnapshot) if not each.startswith("_")} == set(
        typing.get_type_hints(RemoteState)
    )


def test_ha_reports_arrive_unchanged(remote: EngineAndCaller) -> None:
    remote.engine.capture(7)
    batch = remote.handle().hand_out(0.0)
    assert batch is not None
    assert batch == remote.engine.head == remote.handle().outstanding()
    remote.engine.state = FakeState(
        position=position(9),
        troubles=("the disk is full",),
        stopped_tables=(
            StoppedTable(database="shop", table="t", state=TableState.DDL_HELD, reason="why", position=position(9)),
        ),
    )
    reported = remote.handle().status()
    assert reported == STATUS.answer.read(STATUS.answer.write(remote.engine.state))
    assert reported.stopped_tables == remote.engine.state.stopped_tables
    assert (reported.position, reported.cursor) == (position(9), None)
    remote.handle().stop_tables(batch, {"shop.orders": ("MERGE_FAILED", "why")})
    assert remote.engine.stopped == {"shop.orders": ("MERGE_FAILED", "why")}
    assert remote.handle().directory == remote.engine.directory


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("x"),
        EngineStartingError("x"),
        EngineStoppedError("x"),
        StagingError("x"),
        ConfigurationError("x"),
        BatchNotFoundError("x"),
    ],
)
def test_ha_errors_are_those_of_the_engine(remote: EngineAndCaller, error: Exception) -> None:
    remote.engines.error = error  # type: ignore[assignment]
    with pytest.raises(type(error), match=r"^x$"):
        remote.handle()


def test_ha_another_error_keeps_its_name_and_a_defect_no_trace(
    remote: EngineAndCaller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = remote.handle()
    remote.engines.error = PositionLostError("it is gone")
    with pytest.raises(EngineRefusedError, match="it is gone") as refused:
        engine.status()
    assert refused.value.code == "POSITION_LOST"
    remote.engines.error = None
    monkeypatch.setattr(remote.engine, "outstanding", lambda: 1 / 0)
    with pytest.raises(
        EngineRefusedError,
        match="ZeroDivisionError in the engine's process; the log of that process has the whole error",
    ):
        engine.outstanding()
    assert "division by zero" in caplog.text


def test_ha_a_host_that_comes_and_goes_is_found_again_without_a_new_caller(tmp_path: Path) -> None:
    engines = FakeHost(FakeEngine(tmp_path))
    first = server_of(engines, config_at(tmp_path, 1))
    host = RemoteHost(config_at(tmp_path, first.port))
    engines.engine.capture(3)
    batch = host.get_or_start("shop").hand_out(0.0)
    first.close()
    with pytest.raises(EngineAwayError, match="does not answer") as away:
        host.get_or_start("shop")
    assert str(first.port) in str(away.value)
    assert "start an engine process with `sluice engine` on that host" in str(away.value)
    again = server_of(engines, config_at(tmp_path, 1), f"127.0.0.1:{first.port}")

    def found() -> RemoteEngine | None:
        try:
            return host.get_or_start("shop")
        except EngineAwayError:
            return None

    assert wait_for("it is found", found, 30).outstanding() == batch, "and nothing is lost"
    host.close()
    again.close()


def test_ha_of_several_hosts_the_one_that_has_the_destination_is_found(tmp_path: Path) -> None:
    engines = [FakeHost(FakeEngine(tmp_path)) for _ in range(2)]
    servers = [server_of(each, config_at(tmp_path, 1)) for each in engines]
    host = RemoteHost(config_at(tmp_path, *(each.port for each in servers)))
    engines[0].holder = 7
    engines[1].engine.capture(3)
    assert host.get_or_start("shop").hand_out(0.0) is not None
    engines[0].holder, engines[1].holder = None, 8
    assert host.get_or_start("shop").outstanding() is None, "the other has it now"
    engines[0].holder = 9
    with pytest.raises(LeaseLostError):
        host.get_or_start("shop")
    engines[1].holder, engines[1].starting = None, 1
    with pytest.raises(EngineStartingError):
        host.get_or_start("shop")
    servers[0].close()
    assert host.get_or_start("shop").outstanding() is not None
    engines[1].holder = 9
    with pytest.raises(LeaseLostError):
        host.get_or_start("shop")
    servers[1].close()
    with pytest.raises(EngineAwayError):
        host.get_or_start("shop")
    host.close()


def test_ha_each_call_has_a_deadline(remote: EngineAndCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(connection, "ANSWER_SECONDS_MAX", 0.3)
    engine = remote.handle()
    monkeypatch.setattr(remote.engine, "outstanding", lambda: gate.wait(30) and None)
    with pytest.raises(EngineAwayError, match=r"has not answered for 0\.3 s: the process hangs"):
        engine.outstanding()
    gate.set()


def test_ha_a_call_waits_for_a_batch_for_a_limited_time(remote: EngineAndCaller) -> None:
    remote.handle().hand_out(999.0)
    assert remote.engine.longest_wait_seconds == HAND_OUT_SECONDS_MAX
    remote.engine.longest_wait_seconds = 0.0
    remote.handle().offer(999.0)
    assert remote.engine.longest_wait_seconds == HAND_OUT_SECONDS_MAX


# ── who is let in ──


def test_ha_the_token_of_a_machine_is_for_its_owner_and_in_no_sentence(remote: EngineAndCaller) -> None:
    path = remote.root / "data" / TOKEN_FILE
    token = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    remote.handle()
    path.write_text("another that is long enough")
    with pytest.raises(EngineAwayError, match="refuses the token") as refused:
        remote.handle()
    assert token not in str(refused.value)
    path.unlink()
    with pytest.raises(ConfigurationError, match="`sluice engine` creates it"):
        remote.handle()


def test_ha_a_token_file_that_a_crash_left_empty_opens_nothing(tmp_path: Path) -> None:
    config, engines = config_at(tmp_path, 1), FakeHost(FakeEngine(tmp_path))
    path = config.data_dir / TOKEN_FILE
    path.parent.mkdir(parents=True)
    path.with_suffix(f".{os.getpid()}").write_text("of a process with this number that died")
    path.write_text("")
    with pytest.raises(ConfigurationError, match="remove this file"):
        server_of(engines, config)
    path.unlink()
    server_of(engines, config).close()
    assert len(path.read_text()) == 64
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="remove this file"):
        RemoteHost(config).get_or_start("shop")


def test_ha_an_engine_host_without_a_certificate_listens_on_the_loopback_address_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    words = {"kind": "remote", "address": "a:1", "token": f"${VARIABLE}", "ca_file": "/ca.pem"}
    wanted = EngineConfig.model_validate({**words, "listen": "0.0.0.0:4267"})
    config = config_at(tmp_path, 1).model_copy(update={"engine": wanted})
    with pytest.raises(ConfigurationError, match=r"cannot listen at 0\.0\.0\.0:4267 without TLS"):
        server_of(FakeHost(FakeEngine(tmp_path)), config).close()


def test_ha_what_many_tables_have_to_say_arrives_too(remote: EngineAndCaller) -> None:
    remote.engine.capture(1)
    batch = remote.handle().hand_out(0.0)
    assert batch is not None
    reasons = {f"shop.t{number}": ("MERGE_FAILED", "why" * 100) for number in range(15_000)}
    remote.handle().stop_tables(batch, reasons)
    assert remote.engine.stopped == reasons
    remote.engine.state = FakeState(troubles=tuple(why for _, why in reasons.values()))
    assert len(remote.handle().status().troubles) == len(reasons)


def test_ha_another_conf_on_the_engine_host_is_reported_once_it_lasts(tmp_path: Path) -> None:
    made_with = {"shop": "a"}
    server = server_of(FakeHost(FakeEngine(tmp_path)), config_at(tmp_path, 1), conf=made_with.__getitem__)
    host = RemoteHost(config_at(tmp_path, server.port))
    assert host.conf_troubles("shop", "b", 0.0) == (), "nobody has answered yet"
    host.get_or_start("shop")
    assert host.conf_troubles("shop", "a", 0.0) == ()
    assert host.conf_troubles("shop", "b", 1.0) == (), "it is being changed"
    (reported,) = host.conf_troubles("shop", "b", 62.0)
    assert "destinations/shop.yaml in conf/ differs between this host and the engine host" in reported
    assert str(server.port) in reported
    made_with["shop"] = "b"
    host.get_or_start("shop")
    assert host.conf_troubles("shop", "b", 63.0) == ()
    assert host.conf_troubles("shop", "a", 64.0) == (), "counted anew"
    host.close()
    server.close()


def test_ha_the_host_that_had_the_destination_is_called_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [FakeHost(FakeEngine(tmp_path)) for _ in range(2)]
    servers = [server_of(each, config_at(tmp_path, 1)) for each in engines]
    host = RemoteHost(config_at(tmp_path, *(each.port for each in servers)))
    requested: list[tuple[str, float | None]] = []
    call = Connection.call

    def noted(self: Connection, *words: Any) -> Any:
        requested.append((self.address, words[3]))
        return call(self, *words)

    monkeypatch.setattr(Connection, "call", noted)
    first, second = (f"127.0.0.1:{each.port}" for each in servers)
    engines[0].holder = 7  # The engine is on standby, or hangs.
    host.get_or_start("shop")
    host.get_or_start("shop")
    assert requested == [(first, None), (second, None), (second, None)]
    engines[0].holder, engines[1].holder = None, 8
    host.get_or_start("shop")
    assert requested[3:] == [(second, None), (first, remote_host.OTHERS_SECONDS_MAX)]
    host.get_or_start("shop")
    assert requested[5:] == [(first, None)]
    host.close()
    for each in servers:
        each.close()


def test_ha_a_token_that_lacks_or_is_weak_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_at(tmp_path, 1, token=f"${VARIABLE}")
    engines = FakeHost(FakeEngine(tmp_path))
    for value in ("", "short"):
        monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(ConfigurationError, match="SLUICE_TEST_TOKEN has fewer than 16 characters") as said:
            server_of(engines, config)
        assert "short" not in str(said.value)
    monkeypatch.setenv(VARIABLE, TOKEN)
    server = server_of(engines, config)
    host = RemoteHost(config_at(tmp_path, server.port, token=f"${VARIABLE}"))
    assert host.get_or_start("shop").outstanding() is None
    host.close()
    server.close()


@pytest.mark.found
@pytest.mark.parametrize("value", [f"{TOKEN}\n", f"{TOKEN} für beide"])
def test_ha_a_token_that_cannot_be_sent_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Defect 1045: the engine host started with a token that cannot be sent. Each tick then failed with "Invalid metadata", which names
    no setting.
    """
    config = config_at(tmp_path, 1, token=f"${VARIABLE}")
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigurationError, match="SLUICE_TEST_TOKEN has a line end or another character") as said:
        server_of(FakeHost(FakeEngine(tmp_path)), config)
    assert TOKEN not in str(said.value)


def test_ha_a_port_that_another_has_is_reported(tmp_path: Path) -> None:
    engines = FakeHost(FakeEngine(tmp_path))
    first = server_of(engines, config_at(tmp_path, 1))
    with pytest.raises(
        ConfigurationError, match=f"the RPC endpoint of the engines cannot listen at 127.0.0.1:{first.port}"
    ):
        server_of(engines, config_at(tmp_path, 1), f"127.0.0.1:{first.port}")
    first.close()


@pytest.mark.found
def test_ha_a_certificate_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    """Defect 1048: with a certificate and the key of another one, the engine host said that another program has the port. With a `ca_file`
    without a certificate, ticks said that the engine's process does not answer.
    """
    certificate, key = make_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    empty, locked = tmp_path / "empty.pem", tmp_path / "locked.key"
    empty.touch()
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    form, password = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"password")
    locked.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, password))
    engines = FakeHost(FakeEngine(tmp_path))
    for pair in (
        (certificate, make_certificate(other)[1]),
        (key, certificate),
        (certificate, empty),
        (certificate, locked),
    ):
        with pytest.raises(ConfigurationError, match="must be its private key without a password"):
            server_of(engines, config_at(tmp_path, 1, certificate_file=pair[0], key_file=pair[1]))
    with pytest.raises(ConfigurationError, match=r"empty\.pem is not a PEM file with a certificate"):
        RemoteHost(config_at(tmp_path, 1, ca_file=empty)).get_or_start("shop")


@pytest.mark.found
def test_ha_a_replaced_certificate_is_trusted_without_a_restart_of_the_caller(tmp_path: Path) -> None:
    """Defect 97: the caller kept the authority that `ca_file` had at the first call, so ticks failed until the code server was started
    again.
    """
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    pairs = list(map(make_certificate, folders))
    trusted = tmp_path / "ca.pem"
    engines = FakeHost(FakeEngine(tmp_path / "data" / "engine" / "shop"))
    trusted.write_bytes(pairs[0][0].read_bytes())
    server = server_of(engines, config_at(tmp_path, 1, certificate_file=pairs[0][0], key_file=pairs[0][1]))
    host = RemoteHost(config_at(tmp_path, server.port, ca_file=trusted))
    assert _answers(host)
    server.close(0)
    trusted.write_bytes(pairs[1][0].read_bytes())
    config = config_at(tmp_path, server.port, certificate_file=pairs[1][0], key_file=pairs[1][1])
    again = server_of(engines, config, listen=f"127.0.0.1:{server.port}")
    try:
        wait_for("the caller trusts the new certificate", lambda: _answers(host))
    finally:
        again.close(0)


def _answers(host: RemoteHost) -> bool:
    with contextlib.suppress(EngineAwayError):
        return host.get_or_start("shop").outstanding() is None
    return False


def test_ha_tls_admits_only_clients_that_trust_the_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    engines = FakeHost(FakeEngine(tmp_path))
    server = server_of(engines, config_at(tmp_path, 1, certificate_file=certificate, key_file=key))
    trusting = RemoteHost(config_at(tmp_path, server.port, ca_file=certificate))
    assert trusting.get_or_start("shop").outstanding() is None
    plain = RemoteHost(config_at(tmp_path, server.port))
    with pytest.raises(EngineAwayError, match="does not answer"):
        plain.get_or_start("shop")
    other = tmp_path / "other"
    other.mkdir()
    strange = RemoteHost(config_at(tmp_path, server.port, ca_file=make_certificate(other)[0]))
    with pytest.raises(EngineAwayError, match="does not answer"):
        strange.get_or_start("shop")
    for each in (trusting, plain, strange):
        each.close()
    server.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"address": "nowhere"}, "write host:port"),
        ({"address": "127.0.0.1:0"}, "write host:port"),
        ({"address": "a:1,b:2"}, "set the address on which each listens"),
        ({"address": "engine:4267"}, "so it needs a token and TLS: set engine.token"),
        ({"address": "engine:4267", "token": "$T"}, "set engine.certificate_file and engine.key_file"),
        ({"listen": "0.0.0.0:4267"}, "can be reached from other hosts"),
        ({"certificate_file": "/a.pem"}, "set both engine.certificate_file and engine.key_file"),
        ({"certificate": "/a.pem"}, "the setting certificate was removed: write `certificate_file`"),
        ({"key": "/a.pem"}, "the setting key was removed: write `key_file`"),
        ({"authority": "/a.pem"}, "the setting authority was removed: write `ca_file`"),
    ],
)
def test_ha_addresses_that_others_reach_need_a_token_and_tls(words: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        EngineConfig.model_validate({"kind": "remote", **words})


def test_ha_several_hosts_with_all_that_they_need_are_fine() -> None:
    made = EngineConfig.model_validate(
        {"kind": "remote", "address": "a:1, b:2", "listen": "0.0.0.0:1", "token": "$T", "ca_file": "/ca.pem"}
    )
    assert (made.addresses, made.tls) == (("a:1", "b:2"), True)
