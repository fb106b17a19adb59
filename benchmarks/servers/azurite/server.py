"""Runs an Azurite whose blobs are in memory.

package-lock.json pins its version. `npm install --package-lock-only --omit-lockfile-registry-resolved` writes that file.
"""

import hashlib
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from benchmarks.servers.behind_proxy.server import ServerBehindProxy
from benchmarks.servers.installing import installed_once
from sluice.console.toolchain.cache import Cache, open_cache
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.ports import LOOPBACK
from sluice.object_stores.files import file_system

SOURCE = Path(__file__).parent
PACKAGES = ("package.json", "package-lock.json")
ACCOUNT = "devstoreaccount1"
# Azurite's documented key, which is the same for everybody.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
HOST = f"{ACCOUNT}.blob.core.windows.net"
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
INSTALL_SECONDS_MAX = 200.0


class AzuriteServer(ServerBehindProxy):
    """An Azurite on 127.0.0.1 with one account and one container."""

    name, proxy = "azurite", "benchmarks.servers.azurite.start_from"
    container = "lake"

    @property
    def options(self) -> dict[str, str]:
        """The storage options for deltalake."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://{LOOPBACK}:{self.port}/{ACCOUNT}",
            "azure_allow_http": "true",
        }

    @property
    def root(self) -> str:
        """The URL of the container for Sluice, deltalake and Spark's client, which needs the account in it."""
        return f"abfs://{self.container}@{ACCOUNT}.dfs.core.windows.net"

    @property
    def wasb_root(self) -> str:
        """The URL of the container for the client of Hadoop before 3.4.2, which uses Blob endpoints by another scheme."""
        return f"wasb://{self.container}@{HOST}:{self.port}"

    @property
    def wasb_settings(self) -> dict[str, str]:
        """The settings of the client of Hadoop before 3.4.2."""
        return {f"spark.hadoop.fs.azure.account.key.{HOST}:{self.port}": KEY}

    def wasb_environment(self, folder: Path) -> dict[str, str]:
        """Returns environment variables by which Spark's Java resolves the account's host name to this machine. Writes the hosts file that
        they name into `folder`.
        """
        hosts = folder / "hosts"
        hosts.write_text(f"{LOOPBACK} localhost {socket.gethostname()} {HOST}\n")
        return {JAVA_OPTIONS: f"{os.environ.get(JAVA_OPTIONS, '')} -Djdk.net.hosts.file={hosts}".strip()}

    def start(self) -> Self:
        """Starts the server, and returns when the container exists. Raises SetupError if Azurite cannot be installed, and ServerError if
        it does not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        node, home = _installed(open_cache())
        program = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        # Clients announce a newer version of the API than Azurite supports, but use only what Azurite supports. So Azurite must not check
        # the version.
        words = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry")
        self.run([node, str(program), *words, "--blobHost", LOOPBACK, "--blobPort", str(self.own_port)])
        store, _ = file_system(f"az://{self.container}", self.options)
        store.create_dir(self.container)
        return self


def _installed(cache: Cache) -> tuple[str, Path]:
    """Returns the path of node and the folder of Azurite's packages. The first call installs them, completely or not at all. Raises
    SetupError if node or npm is missing, or if npm cannot get the packages.
    """
    if name := next((name for name in ("node", "npm") if not shutil.which(name)), ""):
        raise SetupError(f"There is no {name}, which Azurite needs.")
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in PACKAGES)).hexdigest()[:12]
    return str(shutil.which("node")), installed_once(cache, f"azurite-{digest}", _install)


def _install(folder: Path) -> Path:
    target = folder / "azurite"
    target.mkdir()
    for name in PACKAGES:
        shutil.copy(SOURCE / name, target)
    words = ("ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
    try:
        subprocess.run(
            ["npm", *words], cwd=target, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        raise SetupError(f"npm could not install Azurite: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"npm did not install Azurite within {INSTALL_SECONDS_MAX:g} s") from None
    return target
