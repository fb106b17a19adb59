"""Compiles Sluice's log stores, the Java classes by which Spark commits to Delta tables in object stores. A developer must run this program
after each change of the Java sources: `python -m sluice.console.toolchain.spark.build_log_store`.

The repository contains the compiled jar, because users have only a Java runtime, which contains no compiler. The manifest of the jar
contains a checksum of the sources, by which a test detects an outdated jar.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.home import spark_home
from sluice.console.toolchain.spark.log_store import JAR, SOURCES

RELEASE = "17"  # The oldest Java that Spark 4 supports.
COMPILER = "jdk.compiler/com.sun.tools.javac.Main"
MANIFEST, CHECKSUM = "META-INF/MANIFEST.MF", "Source-SHA256"


def build(jar: Path = JAR) -> None:
    """Compiles the sources and writes the jar. The jar's bytes depend only on the sources and the compiler. Raises CalledProcessError if
    the compiler fails.
    """
    toolchain = set_up([], extras=("google",))
    class_path = [
        *toolchain.delta_jars,
        *toolchain.extra_jars,
        *(spark_home(open_cache()) / "jars").glob("hadoop-client-*.jar"),
    ]
    with tempfile.TemporaryDirectory() as made:
        options = ["--release", RELEASE, "-g:none", "-cp", ":".join(map(str, class_path)), "-d", made]
        subprocess.run([toolchain.java.program, "-m", COMPILER, *options, *SOURCES], check=True)
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, MANIFEST, f"Manifest-Version: 1.0\r\n{CHECKSUM}: {checksum()}\r\n".encode())
            for file in sorted(Path(made).rglob("*.class")):
                _add(archive, str(file.relative_to(made)), file.read_bytes())


def checksum() -> str:
    """Returns the first half of the SHA-256 checksum of all sources. The whole checksum would not fit, because a line of a manifest has at
    most 72 bytes.
    """
    return hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:32]


def recorded_checksum(jar: Path = JAR) -> str:
    """Returns the checksum in the manifest of a jar. The manifest has the checksum of the sources from which the jar was compiled."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(CHECKSUM))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)


if __name__ == "__main__":
    build()
