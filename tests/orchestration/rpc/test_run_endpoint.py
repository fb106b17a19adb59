"""Tests the RPC endpoint of a code server: which callers are refused, and the error for a run that finds no endpoint on its host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.base.testing import LEDGER_ID
from sluice.orchestration.rpc.access import RUN_REQUEST_BYTES_MAX
from sluice.orchestration.rpc.methods import REPORT_FAILING
from sluice.orchestration.rpc.run_caller import caller_of_code_server
from sluice.orchestration.rpc.run_endpoint import RUN_ENDPOINT_FILE
from tests.orchestration.rpc.test_run_caller_ha import CodeServer, offered


@pytest.fixture
def code_server(tmp_path: Path) -> Iterator[CodeServer]:
    made = CodeServer(tmp_path)
    yield made
    made.close()


def rewrite(code_server: CodeServer, **changed: str) -> None:
    path = code_server.directory / RUN_ENDPOINT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_a_caller_with_another_token_is_refused(code_server: CodeServer) -> None:
    rewrite(code_server, token="0" * 32)
    with pytest.raises(EngineAwayError, match="refuses the token"):
        code_server.caller.hand_out(0.0)


def test_a_request_is_limited_before_its_token_is_checked(code_server: CodeServer) -> None:
    """A run's request only names a batch, so its limit is smaller than that of a tick's request. With the larger limit, any local process
    could fill the memory.
    """
    with pytest.raises(EngineAwayError, match="RESOURCE_EXHAUSTED"):
        code_server.caller._engine()._call(REPORT_FAILING, reason="x" * RUN_REQUEST_BYTES_MAX)
    assert code_server.engine.failing == ""


def test_an_endpoint_at_another_port_is_found(code_server: CodeServer) -> None:
    code_server.caller.hand_out(0.0)
    code_server.endpoint.close()
    with pytest.raises(EngineAwayError):
        code_server.caller.hand_out(0.0)
    code_server.tick()
    assert offered(code_server).delivery == 1


@pytest.mark.parametrize("text", ["", "[]", '{"address": 1}', None])
def test_an_endpoint_file_that_is_missing_or_unreadable_counts_as_away(
    code_server: CodeServer, text: str | None
) -> None:
    path = code_server.directory / RUN_ENDPOINT_FILE
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(EngineAwayError, match="this host has no RPC endpoint"):
        code_server.caller.hand_out(0.0)


def test_a_run_on_another_host_names_the_setting_that_it_needs(code_server: CodeServer, tmp_path: Path) -> None:
    """The run does not connect even if the hosts share the folder: another program may use the port here, and must not get the token."""
    reference = BatchReference(destination="shop", ledger=LEDGER_ID, batch=1, first_end=9, delivery=1)
    rewrite(code_server, host="the-code-server", address="127.0.0.1:1")
    with pytest.raises(EngineAwayError, match="serves only runs on the-code-server"):
        code_server.caller.ack(reference)
    for call in (code_server.caller, caller_of_code_server(tmp_path / "nowhere", "shop")):
        with pytest.raises(EngineAwayError, match=r"set engine: \{kind: remote\} with TLS in conf/sluice.yaml"):
            call.hand_out(0.0)
        with pytest.raises(EngineAwayError, match=r"set engine: \{kind: remote\} with TLS in conf/sluice.yaml"):
            call.take(reference, append=True)
