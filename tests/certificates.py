"""Creates certificates for the servers of tests: a self-signed one for 127.0.0.1, or an authority and a server certificate that it has
signed.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Writes a certificate and its key as PEM files, and returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "engine")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "engine.pem", folder / "engine.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def write_certificate(folder: Path, address: str) -> dict[str, Path]:
    """Writes a certificate authority and a server certificate for one address, as PEM files."""
    now = dt.datetime.now(dt.UTC)
    keys = {name: rsa.generate_private_key(65537, 2048) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")]) for name in keys}
    files = {}
    for name, key in keys.items():
        builder = x509.CertificateBuilder(names["ca"], names[name], key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - dt.timedelta(days=1))
        builder = builder.not_valid_after(now + dt.timedelta(days=9))
        builder = builder.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        if name == "server":
            names_of_server = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names_of_server, critical=False)
        certificate = builder.sign(keys["ca"], hashes.SHA256())
        files[name] = folder / f"{name}.pem"
        files[name].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[f"{name}_key"] = folder / f"{name}-key.pem"
        encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
        files[f"{name}_key"].write_bytes(key.private_bytes(*encoding, serialization.NoEncryption()))
    return files
