"""Provides a headless Chromium for the tests that use Dagster's pages as a person does.

It uses a browser on PATH. Otherwise it uses the distribution's package, which it installs if the user is root, and unpacks into the cache
with its dependencies if not.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sluice.console.toolchain.cache import Cache, locked, open_cache
from sluice.console.toolchain.database_libraries import missing_libraries
from sluice.console.toolchain.debian import provide
from sluice.console.toolchain.errors import CommandFailedError, SetupError

PACKAGES = ("chromium-headless-shell", "chromium")  # The first package is smaller, but not every release has it.
# The launcher in /usr/bin starts these programs, but looks only in /usr.
PROGRAMS = ("usr/lib/chromium/chromium-headless-shell", "usr/lib/chromium/chromium")
ON_PATH = (*PACKAGES, "google-chrome")


@dataclass(frozen=True)
class Chromium:
    """A browser that can be started. `environment`: variables that it needs in addition to this process's environment."""

    program: Path
    environment: dict[str, str]


def provide_chromium(cache: Cache | None = None) -> Chromium:
    """Returns a browser, and downloads one if there is none. Raises SetupError, which says what is missing."""
    if found := _on_path():
        return found
    cache = cache or open_cache()
    with locked(cache, Console(stderr=True).print):
        try:
            root = provide(cache, PACKAGES, whole=True)
        except CommandFailedError as error:
            raise _missing(str(error)) from error
    if found := in_folder(root) if root else _on_path():
        return found
    raise _missing("the package contains no program")


def in_folder(root: Path) -> Chromium:
    """Returns the browser in unpacked packages, with the environment for its libraries and fonts there. Raises SetupError."""
    programs = [root / name for name in PROGRAMS if (root / name).exists()]
    if not programs:
        raise _missing("the package contains no program")
    folders = sorted({file.parent for file in root.rglob("*.so*")})
    if lacking := missing_libraries(programs[0], folders):
        raise _missing(f"it lacks {', '.join(lacking)}")
    fonts = {"FONTCONFIG_PATH": str(root / "etc/fonts")} if (root / "etc/fonts").exists() else {}
    libraries = os.pathsep.join(map(str, folders))
    return Chromium(programs[0], {"LD_LIBRARY_PATH": libraries, "XDG_DATA_HOME": str(root / "usr/share"), **fonts})


def _on_path() -> Chromium | None:
    found = next((path for name in ON_PATH if (path := shutil.which(name))), None)
    return Chromium(Path(found), {}) if found else None


def _missing(reason: str) -> SetupError:
    return SetupError(
        f"The browser tests need Chromium ({reason}); install it with `sudo apt-get install -y {PACKAGES[-1]}`, or put one"
        f" on PATH as {' or '.join(ON_PATH)}, and run this again."
    )
