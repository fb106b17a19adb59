"""Installs the shared libraries that a database server needs and this system lacks.

MySQL 8.0.31 and 5.7.22 need libaio and libnuma, which a newly installed system lacks. MariaDB needs only libraries of a base system, but a
very small container image may lack some of them.
"""

import os
import re
import subprocess
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.debian import provide
from sluice.console.toolchain.errors import CommandFailedError, SetupError

# Name of a library → names of the packages that may contain the library. The names with t64 are those of Ubuntu 24.04 and Debian 13, which
# renamed some packages when they changed the time type of 32-bit systems.
PACKAGES = {
    "libaio.so.1": ("libaio1t64", "libaio1"),
    "libnuma.so.1": ("libnuma1",),
    "libcrypt.so.1": ("libcrypt1",),
    "libstdc++.so.6": ("libstdc++6",),
    "libsystemd.so.0": ("libsystemd0",),
}


def provide_libraries(cache: Cache, program: Path, extra: Path) -> str:
    """Returns the LD_LIBRARY_PATH with which a program finds all its libraries. Installs or unpacks the libraries that are missing, and
    creates links to renamed libraries in `extra`. Raises SetupError if a library remains missing.
    """
    search: list[Path] = [extra]
    for library in missing_libraries(program, search):
        search += _provide_one(cache, library, extra)
    still = missing_libraries(program, search)
    if still:
        raise _missing(still[0], "it is still missing after its package was installed or unpacked")
    return os.pathsep.join(str(folder) for folder in search)


def missing_libraries(program: Path, search: list[Path]) -> list[str]:
    """Returns the names of the libraries that a program needs and the dynamic linker does not find. `search` are directories to search in
    addition to those of the system.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in search)}
    shown = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True, check=False)
    return sorted(set(re.findall(r"(\S+) => not found", shown.stdout)))


def _provide_one(cache: Cache, library: str, extra: Path) -> list[Path]:
    if _link_renamed(library, _system_folders(), extra):
        return []
    try:
        unpacked = provide(cache, PACKAGES.get(library, (library,)))
    except CommandFailedError as error:
        raise _missing(library, str(error)) from error
    root = unpacked or Path("/")
    folders = _system_folders() if unpacked is None else sorted({file.parent for file in root.rglob("*.so*")})
    _link_renamed(library, folders, extra)
    return [] if unpacked is None else folders


def _link_renamed(library: str, folders: list[Path], extra: Path) -> bool:
    """Creates a link from the name that a program needs to the library's new name, such as libaio.so.1t64. Returns False if the `folders`
    contain no renamed library.
    """
    for folder in folders:
        renamed = folder / f"{library}t64"
        if renamed.exists():
            extra.mkdir(parents=True, exist_ok=True)
            (extra / library).unlink(missing_ok=True)
            (extra / library).symlink_to(renamed)
            return True
    return False


def _system_folders() -> list[Path]:
    machine = os.uname().machine
    return [Path(f"/usr/lib/{machine}-linux-gnu"), Path(f"/lib/{machine}-linux-gnu"), Path("/usr/lib64")]


def _missing(library: str, reason: str) -> SetupError:
    packages = PACKAGES.get(library)
    command = f"`sudo apt-get install -y {packages[-1]}`" if packages else "your package manager"
    return SetupError(
        f"The database servers need {library} ({reason}); install this library with {command} and run the command "
        "again."
    )
