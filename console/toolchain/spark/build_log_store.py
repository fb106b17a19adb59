"""Compiles the log store: `python -m sluice.console.toolchain.spark.build_log_store`. Run it after a change of the source.

The repository contains the jar, because a Java runtime alone cannot compile. The jar's manifest contains the checksum of the source, by
which a test detects an outdated jar.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from sluice.console.toolchain.artifacts import sha256_of
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.setup import set_up
from sluice.console.toolchain.spark.home import spark_home
from sluice.console.toolchain.spark.log_store import JAR, SOURCE

RELEASE = "17"  # The oldest Java that Spark 4 supports.
COMPILER = "jdk.compiler/com.sun.tools.javac.Main"
MANIFEST, CHECKSUM = "META-INF/MANIFEST.MF", "Source-SHA256"


def build(jar: Path = JAR) -> None:
    """Compiles the source and writes the jar. Its bytes depend only on the source and on the compiler. Raises CalledProcessError."""
    toolchain = set_up([])
    class_path = [*toolchain.delta_jars, *(spark_home(open_cache()) / "jars").glob("hadoop-client-*.jar")]
    with tempfile.TemporaryDirectory() as made:
        options = ["--release", RELEASE, "-g:none", "-cp", ":".join(map(str, class_path)), "-d", made]
        subprocess.run([toolchain.java.program, "-m", COMPILER, *options, SOURCE], check=True)
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, MANIFEST, f"Manifest-Version: 1.0\r\n{CHECKSUM}: {checksum()}\r\n".encode())
            for file in sorted(Path(made).rglob("*.class")):
                _add(archive, str(file.relative_to(made)), file.read_bytes())


def checksum() -> str:
    """Returns the first half of the source's checksum, because a line of a manifest has at most 72 bytes."""
    return sha256_of(SOURCE)[:32]


def recorded_checksum(jar: Path = JAR) -> str:
    """Returns the checksum of the source from which a jar was compiled."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith(CHECKSUM))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)


if __name__ == "__main__":
    build()
