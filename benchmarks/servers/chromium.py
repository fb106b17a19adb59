"""Provides a headless Chromium for the tests that use Dagster's pages as a person does.

A browser on PATH is preferred. If there is none, the distribution's package is used: installed if the user is root, and otherwise unpacked
into the cache with its dependencies.
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

# The first package is smaller, but some releases of the distribution lack it.
PACKAGES = ("chromium-headless-shell", "chromium")
# The packages have a launcher for these programs. Sluice does not use this launcher, because the launcher looks for the programs only in
# /usr.
PROGRAMS = ("usr/lib/chromium/chromium-headless-shell", "usr/lib/chromium/chromium")
ON_PATH = (*PACKAGES, "google-chrome")


@dataclass(frozen=True)
class Chromium:
    """A browser that can be started. `environment` has the variables that the browser needs in addition to those of this process."""

    program: Path
    environment: dict[str, str]


def provide_chromium(cache: Cache | None = None) -> Chromium:
    """Returns a browser. If there is none, downloads one. Raises SetupError if that fails. The message says what is missing."""
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
    """Returns the browser in unpacked packages, with an environment that names their libraries and fonts. Raises SetupError if the browser
    or a library is missing.
    """
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
