"""Provides packages of Debian or Ubuntu. If the user is root, the packages are installed. Otherwise the packages are unpacked into the
cache.

`apt-get download` needs no root rights, and `dpkg-deb -x` unpacks a package into any directory. Some servers are only in Debian unstable.
The packages of such a server are unpacked with all their dependencies, including the C library. To find and download them, apt uses package
lists in a separate directory, so that the system's own package lists do not change.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.errors import CommandFailedError

APT_SECONDS_MAX = 900
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UNSTABLE = "unstable"
# Packages of script interpreters are not unpacked, because Sluice runs no script that needs them.
NOT_UNPACKED = ("perl", "libperl")


def is_root() -> bool:
    """Returns whether root runs this process, so that it may install packages into the system."""
    return os.geteuid() == 0


def first_available(candidates: Sequence[str]) -> str | None:
    """Returns the first of the packages that apt knows in this release of the distribution, or None if apt knows none of them."""
    for package in candidates:
        shown = subprocess.run(
            ["apt-cache", "show", "--no-all-versions", package], capture_output=True, text=True, check=False
        )
        if shown.returncode == 0 and "Filename:" in shown.stdout:
            return package
    return None


def provide(cache: Cache, candidates: Sequence[str], *, whole: bool = False) -> Path | None:
    """Installs (as root) or unpacks (as another user) the first available package of the `candidates`. Returns the directory into which the
    package was unpacked, or None if it was installed. If a candidate is unpacked already, only returns its directory.

    With `whole`, the dependencies that the system lacks are unpacked too. An installation always includes the dependencies. Raises
    CommandFailedError if no candidate is available, or if apt is missing or fails.
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
        raise CommandFailedError(f"apt knows none of the packages {', '.join(candidates)}")
    if not is_root():
        return _unpack(cache, package, [package, *(dependencies_lacking(package) if whole else ())])
    _install(package)
    return None


def unpacked(cache: Cache, name: str, packages: Sequence[str]) -> Path:
    """Unpacks packages into the directory `name` of the cache, and returns that directory. Unpacks nothing if the directory exists. The
    packages are not installed, so that none of their services starts.

    The system must already have the dependencies of the packages. Raises CommandFailedError if apt is missing or fails.
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


def unpacked_from_unstable(package: str, target: Path) -> None:
    """Unpacks a package of Debian unstable with all its dependencies except Perl into a directory. Does not use the packages that the
    system has installed, and does not change the system.

    The packages come from the mirror of the system's apt. Raises CommandFailedError if the system is not Debian or has no apt, or if the
    package does not exist or cannot be downloaded.
    """
    if not shutil.which("apt-get"):
        raise CommandFailedError("this system has no apt-get")
    source = _unstable_source()
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    state, archives = scratch / "apt", scratch / "archives"
    try:
        for folder in (state / "lists" / "partial", state / "cache" / "archives" / "partial", archives):
            folder.mkdir(parents=True)
        (state / "status").touch()
        (state / "sources.list").write_text(f"{source}\n", encoding="utf-8")
        options = _private_state(state)
        _run(["apt-get", *options, "update", "-q"])
        output = _run(["apt-get", *options, "install", "-s", "--no-install-recommends", package])
        names = [line.split()[1] for line in output.splitlines() if line.startswith("Inst ")]
        wanted = [name for name in names if not name.startswith(NOT_UNPACKED)]
        _run(["apt-get", *options, "download", "-q", *wanted], folder=archives)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(scratch)])
        _redirect_links(scratch)
        for folder in (state, archives):
            shutil.rmtree(folder)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unstable_source() -> str:
    """Returns the line for sources.list that names Debian unstable on this system's mirror. Raises CommandFailedError if the system is not
    Debian or has no mirror.
    """
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian":
        raise CommandFailedError(
            f"this system is {release.get('ID')}, and packages of Debian unstable can be unpacked only on Debian"
        )
    output = _run(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"])
    pairs = [line.split() for line in output.splitlines()]
    own = {release.get("VERSION_CODENAME", ""), UNSTABLE, "sid", "testing", "stable"}
    mirrors = [mirror for suite, mirror in pairs if suite in own]
    if not mirrors:
        raise CommandFailedError("apt lists no mirror of this release of Debian")
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return f"deb {signed}{mirrors[0]} {UNSTABLE} main"


def _private_state(folder: Path) -> list[str]:
    """Returns the options with which apt uses a state in `folder` instead of the system's package lists, sources and installed packages."""
    options = {
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        # Without this option, apt would download as its sandbox user, who cannot write to a home directory.
        **({"APT::Sandbox::User": "root"} if is_root() else {}),
    }
    return [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]


def dependencies_lacking(package: str) -> list[str]:
    """Returns the packages that apt would install together with `package`. This function needs no root rights."""
    output = _run(["apt-get", "install", "-s", "--no-install-recommends", package])
    installed = [line.split()[1] for line in output.splitlines() if line.startswith("Inst ")]
    return [name for name in installed if name != package]


def _install(package: str) -> None:
    try:
        _run(["apt-get", "install", "-q", "-y", "--no-install-recommends", package])
    except CommandFailedError:
        # The package lists of an old container image may name files that no longer exist. So the lists are updated before the second
        # attempt.
        _run(["apt-get", "update", "-q"])
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
    """Changes the absolute symbolic links in an unpacked package, such as a link to /etc/java-17-openjdk/…, to links to the same path below
    `root`. Otherwise they would name files of the system, which lacks the package. Leaves a link unchanged if `root` lacks the path.
    """
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
