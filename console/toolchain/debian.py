"""Gets packages of Debian or Ubuntu: installed where we are root, else unpacked into the cache; called by java and others.

Without root `apt-get download` needs no rights, and `dpkg-deb -x` unpacks a package anywhere.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from console.toolchain.cache import Cache
from console.toolchain.errors import CommandFailedError

APT_SECONDS_MAX = 900


def is_root() -> bool:
    """Whether packages may be installed into the system."""
    return os.geteuid() == 0


def first_available(candidates: Sequence[str]) -> str | None:
    """Return the first package that this release of the distribution has."""
    for package in candidates:
        shown = subprocess.run(
            ["apt-cache", "show", "--no-all-versions", package], capture_output=True, text=True, check=False
        )
        if shown.returncode == 0 and "Filename:" in shown.stdout:
            return package
    return None


def provide(cache: Cache, candidates: Sequence[str], *, whole: bool = False) -> Path | None:
    """Return the folder the first available package was unpacked into, None when it was installed into the system.

    `whole`: what it depends on and the system lacks is unpacked with it; an installation brings that anyway.
    """
    for candidate in candidates:
        if (cache.debian / candidate).exists():
            return cache.debian / candidate
    if not shutil.which("apt-get"):
        raise CommandFailedError("this system has no apt-get")
    package = first_available(candidates)
    if package is None and is_root():
        _run(["apt-get", "update", "-q"])
        package = first_available(candidates)
    if package is None:
        raise CommandFailedError(f"no package of {', '.join(candidates)} is known to apt")
    if not is_root():
        return _unpack(cache, package, [package, *(dependencies_lacking(package) if whole else ())])
    _install(package)
    return None


def unpacked(cache: Cache, name: str, packages: Sequence[str]) -> Path:
    """The folder of that name in the cache with all of the packages in it, which are nowhere installed: no service of theirs begins.

    What they need of the system beside each other must be there.
    """
    target = cache.debian / name
    if not target.exists():
        if not shutil.which("apt-get"):
            raise CommandFailedError("this system has no apt-get")
        try:
            _unpack(cache, name, packages)
        except CommandFailedError:
            if not is_root():
                raise
            _run(["apt-get", "update", "-q"])
            _unpack(cache, name, packages)
    return target


def dependencies_lacking(package: str) -> list[str]:
    """What an installation of a package would bring with it; apt needs no rights to say so."""
    told = _run(["apt-get", "install", "-s", "--no-install-recommends", package])
    installed = [line.split()[1] for line in told.splitlines() if line.startswith("Inst ")]
    return [name for name in installed if name != package]


def _install(package: str) -> None:
    try:
        _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", package])
    except CommandFailedError:
        _run(["apt-get", "update", "-q"])  # the lists of an image that is some months old name files that are gone
        _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", package])


def _unpack(cache: Cache, name: str, packages: Sequence[str]) -> Path:
    target = cache.debian / name
    scratch = cache.debian / f"{name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _run(["apt-get", "download", "-q", *packages], folder=scratch)
        for archive in scratch.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(scratch)])
            archive.unlink()
        _redirect_links(scratch)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _redirect_links(root: Path) -> None:
    """Let links like /etc/java-17-openjdk/… point into the unpacked package, where the file really is."""
    for link in [path for path in root.rglob("*") if path.is_symlink()]:
        inside = root / str(link.readlink()).lstrip("/")
        if link.readlink().is_absolute() and inside.exists():
            relative = os.path.relpath(inside, link.parent)
            link.unlink()
            link.symlink_to(relative)


def _run(command: list[str], folder: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=APT_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailedError(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CommandFailedError(f"`{' '.join(command)}` failed: {''.join(last)}")
    return done.stdout
