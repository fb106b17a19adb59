"""Makes Java trust the authorities that the rest of the system trusts. Called by the downloader.

Java has a store of its own, which a Java that was unpacked without root lacks, and which never has a company's own authority.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
STORE_PASSWORD = "changeit"  # noqa: S105  Java wants one; public certificates are no secret
BEGIN = b"-----BEGIN CERTIFICATE-----"


def trust_options(store: Path) -> list[str]:
    """Writes the store and returns the options that name it; none if the system has no list of authorities."""
    bundle = Path(os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT") or SYSTEM_CERTIFICATES)
    entries = [PKCS12Certificate(each, str(number).encode()) for number, each in enumerate(_certificates(bundle))]
    if not entries:
        return []
    store.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(STORE_PASSWORD.encode())))
    options = {"trustStore": str(store), "trustStoreType": "PKCS12", "trustStorePassword": STORE_PASSWORD}
    return [f"-Djavax.net.ssl.{key}={value}" for key, value in options.items()]


def _certificates(bundle: Path) -> Iterator[x509.Certificate]:
    """Yields the authorities of a file. One that cannot be read is left out; one that violates the standard is kept without a warning."""
    pieces = bundle.read_bytes().split(BEGIN)[1:] if bundle.is_file() else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for piece in pieces:
            with contextlib.suppress(ValueError):
                yield x509.load_pem_x509_certificate(BEGIN + piece)
