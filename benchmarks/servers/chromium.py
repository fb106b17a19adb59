"""Provides Debian's Chromium without a screen, for the tests that look at Dagster's pages as a person does.

Uses the one on PATH; else the distribution's package, which is installed if the user is root, and otherwise unpacked into the cache with
its dependencies.
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

PACKAGES = ("chromium-headless-shell", "chromium")  # the first is smaller, but not in every release
# a launcher in /usr/bin starts these, and looks only in /usr
PROGRAMS = ("usr/lib/chromium/chromium-headless-shell", "usr/lib/chromium/chromium")
ON_PATH = (*PACKAGES, "google-chrome")


@dataclass(frozen=True)
class Chromium:
    """A browser to start: its program, and its variables in addition to our environment."""

    program: Path
    environment: dict[str, str]


def provide_chromium(cache: Cache | None = None) -> Chromium:
    """Returns the browser, downloaded if there is none yet. Raises SetupError with one sentence about what is missing."""
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
    """Returns the browser from unpacked packages, with their libraries and fonts, which are found only there. Raises SetupError."""
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
