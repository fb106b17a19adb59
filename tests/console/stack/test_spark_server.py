"""Tests `sluice spark`, which runs the Spark Connect server of conf/ in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.main import app
from sluice.console.stack.spark_server import Listening, spark_server
from sluice.console.toolchain.errors import PortTakenError
from sluice.console.toolchain.grpc_probe import GrpcProbe
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from sluice.console.toolchain.spark.server import _ping_spark
from tests.waiting import wait_for

STORE = {"aws_region": "eu-central-1", "aws_access_key_id": "$NO_SUCH_KEY", "aws_secret_access_key": "$NO_SUCH_SECRET"}


def conf_of(folder: Path, **settings: object) -> Path:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "sluice.yaml").write_text(yaml.safe_dump({"data_dir": str(folder / "data"), **settings}))
    return conf


def refused(conf: Path, *words: str) -> BaseException | None:
    return CliRunner().invoke(app, ["spark", *words], env={"SLUICE_CONF": str(conf)}).exception


def test_an_address_without_a_port_is_refused(tmp_path: Path) -> None:
    error = refused(conf_of(tmp_path), "--listen", "spark")
    assert isinstance(error, ConfigurationError)
    assert "--listen: 'spark' is not an address; write host:port" in str(error)


def test_a_credential_that_is_not_set_is_named_before_anything_starts(tmp_path: Path) -> None:
    error = refused(conf_of(tmp_path, lake="s3://bucket/lake", storage_options=STORE))
    assert isinstance(error, ConfigurationError)
    assert "NO_SUCH_KEY is not set" in str(error)
    assert "`sluice spark` passes the secrets in storage_options to Spark" in str(error)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refused(conf_of(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert isinstance(error, PortTakenError)
    assert f"Port {port}, wanted for the Spark Connect server" in str(error)


def test_the_server_has_the_settings_of_conf_its_memory_and_its_address(tmp_path: Path) -> None:
    conf = conf_of(tmp_path)
    (conf / "spark-defaults.conf").write_text("spark.master local[1]\n")
    server = spark_server(load_config(conf), conf, Listening.at("192.0.2.1:15009", "800m"))
    assert (server.port, server.memory) == (15009, "800m")
    assert server._settings_file == conf / "spark-defaults.conf"
    assert server._settings == {"spark.connect.grpc.binding.address": "192.0.2.1"}


@pytest.mark.spark
def test_it_serves_other_hosts_until_sigterm_which_reaches_java_itself(tmp_path: Path) -> None:
    conf, port = conf_of(tmp_path), free_port()
    command = [sys.executable, "-m", "sluice.console.main", "spark", "--listen", f"0.0.0.0:{port}", "--memory", "1g"]
    process = ChildProcess(command, tmp_path / "spark.log", environment={**os.environ, "SLUICE_CONF": str(conf)})
    try:
        probe = GrpcProbe(port, _ping_spark)
        wait_for("a session answers", lambda: not process.running or probe.answers(), 120)
        socket.create_connection(("127.0.0.2", port), 5).close()  # This is another address of this host.
        assert "java" in Path(f"/proc/{process.pid}/exe").resolve().name
        os.kill(process.pid, signal.SIGTERM)
        wait_for("it has ended", lambda: not process.running)
        assert "143" in process.ended
    finally:
        process.kill()
