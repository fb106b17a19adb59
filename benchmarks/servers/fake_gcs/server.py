"""Runs a fake-gcs-server whose objects are in memory. The Go module proxy provides its pinned version."""

import http.client
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from benchmarks.servers.behind_proxy.server import START_SECONDS_MAX, ServerBehindProxy
from benchmarks.servers.installing import installed_once
from sluice.console.toolchain.cache import Cache, open_cache
from sluice.console.toolchain.errors import ServerError, SetupError
from sluice.console.toolchain.ports import LOOPBACK

MODULE, VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
INSTALL_SECONDS_MAX = 280.0


class FakeGcsServer(ServerBehindProxy):
    """A fake-gcs-server on 127.0.0.1 with one bucket, behind the proxy that adds what the server lacks."""

    name, proxy = "fake-gcs-server", "benchmarks.servers.fake_gcs.proxy"
    bucket = "lake"

    @property
    def root(self) -> str:
        """The URL of the bucket for Sluice and deltalake."""
        return f"gs://{self.bucket}"

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """The storage options for deltalake. The options contain an account that names the emulator and needs no token."""
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        return {"google_service_account_key": json.dumps({**account, "private_key_id": ""})}

    @property
    def old_client_settings(self) -> dict[str, str]:
        """The settings by which version 2 of Google's client for Hadoop sends requests without a token."""
        settings = {"null.enable": "true", "service.account.enable": "false"}
        return {f"spark.hadoop.fs.gs.auth.{name}": value for name, value in settings.items()}

    def start(self) -> Self:
        """Starts the server, and returns when the bucket exists. Raises SetupError if it cannot be installed, and ServerError if it does
        not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        program = _installed(open_cache()) / "fake-gcs-server"
        address = ("-scheme", "http", "-host", LOOPBACK, "-port", str(self.own_port), "-backend", "memory")
        public = ("-public-host", f"{LOOPBACK}:{self.port}", "-external-url", self.endpoint)
        self.run([str(program), *address, *public])
        self._make_bucket()
        return self

    def _make_bucket(self) -> None:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=START_SECONDS_MAX)
        body, headers = json.dumps({"name": self.bucket}), {"Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b", body, headers)
        if (answer := connection.getresponse()).status != http.client.OK:
            raise ServerError(f"fake-gcs-server did not make a bucket: {answer.read().decode()}")
        connection.close()


def _installed(cache: Cache) -> Path:
    """Returns the folder with the program. The first call compiles it. Raises SetupError if Go is not installed, or the module cannot be
    downloaded.
    """
    if not shutil.which("go"):
        raise SetupError("There is no go, which compiles fake-gcs-server.")
    return installed_once(cache, f"fake-gcs-server-{VERSION}", _install)


def _install(folder: Path) -> Path:
    target = folder / "bin"
    command = ["go", "install", f"{MODULE}@{VERSION}"]
    environment = {**os.environ, "GOBIN": str(target)}
    try:
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        raise SetupError(f"go could not install fake-gcs-server: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"go did not install fake-gcs-server within {INSTALL_SECONDS_MAX:g} s") from None
    return target
