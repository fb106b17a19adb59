"""Debian's Chromium without a screen; used by the tests that look at Dagster's pages as a person does.

One that is on PATH is taken; else it is the distribution's package, installed where we are root, and unpacked into the cache with what it
depends on where we are not.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from console.toolchain.cache import Cache, locked, open_cache
from console.toolchain.database.libraries import missing_libraries
from console.toolchain.debian import provide
from console.toolchain.errors import CommandFailedError, SetupError

PACKAGES = ("chromium-headless-shell", "chromium")  # the first is smaller, and not in every release
# named by a launcher of /usr/bin, which knows no other place than /usr
PROGRAMS = ("usr/lib/chromium/chromium-headless-shell", "usr/lib/chromium/chromium")
ON_PATH = (*PACKAGES, "google-chrome")


@dataclass(frozen=True)
class Chromium:
    """A browser to start: its program, and what its environment must say beside ours."""

    program: Path
    environment: dict[str, str]


def provide_chromium(cache: Cache | None = None) -> Chromium:
    """Return the browser, fetched where there is none yet. Raises SetupError, one sentence that says what is missing."""
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
    raise _missing("the package brought no program")


def in_folder(root: Path) -> Chromium:
    """The browser of packages that were unpacked there: their libraries and fonts are found nowhere else. Raises SetupError."""
    programs = [root / name for name in PROGRAMS if (root / name).exists()]
    if not programs:
        raise _missing("the package brought no program")
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
