"""Finds a Java runtime that can run Spark 4.1, or installs such a runtime."""

import contextlib
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.debian import provide
from sluice.console.toolchain.errors import CommandFailedError, SetupError

JAVA_VERSION_MIN = 17  # The oldest Java that Spark 4 supports.
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
# Spark 4.1 names this module of Java in its Java options. A Java runtime without this module, such as a reduced runtime, cannot start
# Spark.
VECTOR_MODULE = "jdk.incubator.vector"
SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
STORE_PASSWORD = "changeit"  # noqa: S105  Java requires a password; the store contains only public certificates
BEGIN = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True)
class Java:
    """A usable Java runtime. `program` is the path of the runtime's `java` program, and `version` is the runtime's major version."""

    program: Path
    version: int

    @property
    def home(self) -> Path:
        """The value for JAVA_HOME."""
        return self.program.resolve().parents[1]


def provide_java(cache: Cache) -> Java:
    """Returns the Java runtime that the user has chosen by JAVA_HOME or PATH. Otherwise, returns a usable runtime that is installed or in
    the cache. If there is no such runtime either, installs or unpacks the distribution's package. Raises SetupError if the chosen runtime
    is not usable, or if no runtime can be installed.
    """
    chosen = _chosen()
    if chosen:
        return _require_usable(chosen)
    for program in _lying_about(cache):
        found = inspect_java(program)
        if isinstance(found, Java):
            return found
    try:
        unpacked = provide(cache, PACKAGES)
    except CommandFailedError as error:
        raise _needs_java(f"no Java was found, and {error}") from error
    programs = _packaged(unpacked or Path("/"))
    if not programs:
        raise _needs_java("the package contains no java program")
    return _require_usable(programs[-1])


def _chosen() -> Path | None:
    """Returns the Java program that the user has chosen: the one in JAVA_HOME, or the one on PATH if JAVA_HOME is not set. Returns None if
    there is neither. The caller must not replace an unusable program by another one, because that would surprise the user.
    """
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    if home:
        return Path(home) / "bin" / "java"
    return Path(on_path) if on_path else None


def _require_usable(program: Path) -> Java:
    found = inspect_java(program)
    if isinstance(found, Java):
        return found
    raise _needs_java(found)


def inspect_java(program: Path) -> Java | str:
    """Returns the Java runtime of a program. If Sluice cannot use the runtime, returns a clause that says why."""
    try:
        shown = _run(program, "--list-modules")
        # Java 8 has no modules, and does not know the option.
        version = parse_version(shown.stdout) or parse_version(_run(program, "-version").stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run ({error})"
    if version is None:
        return f"the version of {program} is unknown"
    if version < JAVA_VERSION_MIN:
        return f"the Java at {program} has version {version}, which is too old"
    if VECTOR_MODULE not in shown.stdout:
        return f"the Java at {program} lacks the module {VECTOR_MODULE}"
    return Java(program, version)


def _run(program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *options], capture_output=True, text=True, timeout=60, check=False)


def parse_version(text: str) -> int | None:
    """Returns the major version in the output of `java --list-modules` or `java -version`, or None if the output contains no version. For
    Java 8, the output contains 1.8, and the result is 8.
    """
    found = re.search(r'(?:version "|^java\.base@)(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _lying_about(cache: Cache) -> list[Path]:
    roots = [Path("/"), *sorted(cache.debian.glob("*"))]
    return [program for root in roots for program in _packaged(root)]


def _packaged(root: Path) -> list[Path]:
    return sorted(root.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"))


def _needs_java(reason: str) -> SetupError:
    fit = [program for program in _packaged(Path("/")) if isinstance(inspect_java(program), Java)]
    command = f"export JAVA_HOME={fit[-1].parents[1]}" if fit else f"sudo apt-get install -y {PACKAGES[0]}"
    hint = "" if fit else f" ({PACKAGES[1]} on a newer system)"
    return SetupError(
        f"Sluice needs Java {JAVA_VERSION_MIN} or 21: {reason}; run `{command}`{hint} and start again,"
        " or set JAVA_HOME to a Java of one of these versions."
    )


def trust_options(store: Path) -> list[str]:
    """Writes the certificate authorities that the system trusts to the trust store `store`, and returns the Java options that name this
    store. The authorities are in the file that SSL_CERT_FILE or PIP_CERT names, or in SYSTEM_CERTIFICATES. Returns an empty list if this
    file does not exist or contains no certificate.

    Java's own trust store is not used, because it lacks the certificate authorities of a company. Also, a Java runtime that was unpacked
    without root rights has no trust store.
    """
    bundle = Path(os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT") or SYSTEM_CERTIFICATES)
    entries = [PKCS12Certificate(each, str(number).encode()) for number, each in enumerate(_certificates(bundle))]
    if not entries:
        return []
    store.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(STORE_PASSWORD.encode())))
    options = {"trustStore": str(store), "trustStoreType": "PKCS12", "trustStorePassword": STORE_PASSWORD}
    return [f"-Djavax.net.ssl.{key}={value}" for key, value in options.items()]


def _certificates(bundle: Path) -> Iterator[x509.Certificate]:
    """Yields the certificates in a file. Skips a certificate that cannot be parsed. Yields a certificate that can be parsed but violates
    the standard, and suppresses the warning about it.
    """
    pieces = bundle.read_bytes().split(BEGIN)[1:] if bundle.is_file() else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for piece in pieces:
            with contextlib.suppress(ValueError):
                yield x509.load_pem_x509_certificate(BEGIN + piece)
