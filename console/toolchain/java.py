"""Finds a Java that Spark 4.1 runs on, or gets one; called by setup, used by the downloader and the Spark server."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from console.toolchain.cache import Cache
from console.toolchain.debian import provide
from console.toolchain.errors import CommandFailedError, SetupError

JAVA_VERSION_MIN = 17  # the oldest that Spark 4 supports
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
VECTOR_MODULE = "jdk.incubator.vector"  # Spark 4.1 names it in its Java options, so a stripped runtime fails


@dataclass(frozen=True)
class Java:
    """A usable Java runtime: its `java` program, its major version, and options for its store of trusted authorities."""

    program: Path
    version: int
    trust_options: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """What JAVA_HOME would be."""
        return self.program.resolve().parents[1]


def provide_java(cache: Cache) -> Java:
    """Return the Java of JAVA_HOME or PATH if it will do, else one from the distribution's package."""
    complaints = []
    for program in _candidates(cache):
        found = inspect_java(program)
        if isinstance(found, Java):
            return found
        complaints.append(found)
    reason = "; ".join(complaints) or "no Java was found"
    try:
        unpacked = provide(cache, PACKAGES)
    except CommandFailedError as error:
        raise _needs_java(f"{reason}; {error}") from error
    for program in _packaged(unpacked or Path("/")):
        found = inspect_java(program)
        if isinstance(found, Java):
            return found
    raise _needs_java(reason)


def inspect_java(program: Path) -> Java | str:
    """Return the Java behind a program, or the reason why it will not do."""
    try:
        shown = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run ({error})"
    version = parse_version(shown.stderr + shown.stdout)
    if version is None:
        return f"{program} does not say its version"
    if version < JAVA_VERSION_MIN:
        return f"the Java at {program} is version {version}, too old: Spark needs {JAVA_VERSION_MIN} or 21"
    modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if VECTOR_MODULE not in modules.stdout:
        return f"the Java at {program} is stripped: it lacks the module {VECTOR_MODULE}"
    return Java(program, version)


def parse_version(text: str) -> int | None:
    """Read the major version out of `java -version`; the old scheme wrote 8 as 1.8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def _candidates(cache: Cache) -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    named = [Path(home) / "bin" / "java"] if home else []
    unpacked = [program for folder in sorted(cache.debian.glob("*")) for program in _packaged(folder)]
    return [*named, *([Path(on_path)] if on_path else []), *_packaged(Path("/")), *unpacked]


def _packaged(root: Path) -> list[Path]:
    return sorted(root.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"))


def _needs_java(reason: str) -> SetupError:
    return SetupError(
        f"Sluice needs Java {JAVA_VERSION_MIN} or 21 ({reason});"
        f" run `sudo apt-get install -y {PACKAGES[0]}` (or {PACKAGES[1]}), or set JAVA_HOME to such a Java."
    )
