"""Runs an Azurite that keeps all blobs in memory.

package-lock.json pins its version: `npm install --package-lock-only --omit-lockfile-registry-resolved` writes that file.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from benchmarks.servers.installing import installed_once
from sluice.console.toolchain.cache import Cache, open_cache
from sluice.console.toolchain.errors import ServerError, SetupError
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening
from sluice.object_stores.files import file_system

SOURCE = Path(__file__).parent
PROXY = SOURCE / "start_from.py"
PACKAGES = ("package.json", "package-lock.json")
ACCOUNT = "devstoreaccount1"
# Azurite's documented key, which is the same for everybody.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_SECONDS_MAX, INSTALL_SECONDS_MAX = 60.0, 200.0


class AzuriteServer:
    """An Azurite on 127.0.0.1 with one account and one container."""

    container = "lake"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._own_port = folder.absolute(), free_port(), free_port()
        self._processes: list[ChildProcess] = []

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
    def log(self) -> Path:
        return self.folder / "azurite.log"

    def start(self) -> Self:
        """Starts the server. Returns when the container exists. Raises SetupError if Azurite cannot be installed, ServerError if it does
        not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        node, home = _installed(open_cache())
        program = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        # Clients announce a newer API version than Azurite's, but use nothing that it lacks.
        words = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry")
        address = ("--blobHost", LOOPBACK, "--blobPort", str(self._own_port))
        proxy = [sys.executable, str(PROXY), str(self.port), str(self._own_port)]
        for port, command in ((self._own_port, [node, str(program), *words, *address]), (self.port, proxy)):
            self._processes.append(ChildProcess(command, self.log, folder=self.folder))
            if not wait_until_listening(port, self._processes, START_SECONDS_MAX):
                raise ServerError(f"Azurite did not start; its log {self.log} ends: {last_lines(self.log)}")
        store, _ = file_system(f"az://{self.container}", self.options)
        store.create_dir(self.container)
        return self

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        for process in self._processes:
            process.kill()


def _installed(cache: Cache) -> tuple[str, Path]:
    """Returns the path of node and the folder of Azurite's packages. The first call installs the packages, completely or not at all.

    Raises SetupError if node or npm is missing, or npm cannot get the packages.
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
