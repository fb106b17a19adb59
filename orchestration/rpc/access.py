"""Authenticates and encrypts calls to an engine. The token and the certificates are read when they are used."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import ssl
from pathlib import Path
from typing import Any

import grpc

from sluice.cdc_engine.config import EngineConfig
from sluice.cdc_engine.config.engine import LOOPBACK, host_and_port
from sluice.cdc_engine.durable_files import make_folder, sync
from sluice.cdc_engine.environment import described, filled
from sluice.cdc_engine.errors import ConfigurationError

TOKEN_FILE = "engine-token"  # noqa: S105  a file name
TOKEN_LENGTH_MIN = 16
_TOKEN = re.compile(r"[ -~]+")  # The characters that gRPC accepts in the value of a header.
# The longest requests, in bytes, that a server accepts from ticks and from runs. A tick may send the reasons of many stopped tables; its
# limit is enough for some hundred thousand tables. A run only names a batch, so gRPC's default of 4 MiB is enough for runs. The server
# needs limits, because it reads a request before it checks the token.
REQUEST_BYTES_MAX, RUN_REQUEST_BYTES_MAX = 64 << 20, 4 << 20
LENGTHS_OF_CALLER = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
# An attempt to connect ends after this time. gRPC's default of 20 s would let a dead host use up the time of a call.
CONNECT_MS_MAX = 2000


def token_of(config: EngineConfig, data_dir: Path, *, make: bool) -> str:
    """Returns the token that engine and callers share: `engine.token` of conf/, otherwise the content of the token file in `data_dir`. If
    `make`, creates a missing token file; only an engine host passes `make`. Raises ConfigurationError if there is no valid token. The
    message does not contain the token.
    """
    if config.token:
        token = filled(config.token, "engine.token")
        if len(token) < TOKEN_LENGTH_MIN:
            raise ConfigurationError(
                f"engine.token: {described(config.token)} has fewer than {TOKEN_LENGTH_MIN} characters; use a longer token"
            )
        if not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                f"engine.token: {described(config.token)} has a line end or another character that gRPC cannot send; use only printable "
                "ASCII characters"
            )
        return token
    path = data_dir / TOKEN_FILE
    try:
        if make and not path.exists():
            _make(path)
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise ConfigurationError(f"{path} does not exist yet: `sluice engine` creates it when it starts") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {type(error).__name__}") from error
    if len(token) < TOKEN_LENGTH_MIN:
        raise ConfigurationError(
            f"{path} has fewer than {TOKEN_LENGTH_MIN} characters, which is too short for a token: remove this file, "
            "and `sluice engine` creates a new file"
        )
    return token


def server_credentials(config: EngineConfig) -> Any:
    """Returns the TLS credentials of an engine host. Returns None for a host without TLS, which may listen only on the loopback address.
    Raises ConfigurationError if a host without TLS would listen on another address, or if a file cannot be read or used.
    """
    if config.certificate_file is None or config.key_file is None:
        if host_and_port(config.listens_at)[0] not in LOOPBACK:
            raise ConfigurationError(
                f"an engine host cannot listen at {config.listens_at} without TLS, because the token could be read in "
                "transit: set engine.certificate_file and engine.key_file in conf/sluice.yaml, or an address on 127.0.0.1 in engine.listen"
            )
        return None
    content = _content(config.key_file), _content(config.certificate_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # gRPC itself decides which keys are long enough.
    try:
        # Checks the files now, because gRPC would report only that it cannot listen. The empty password prevents OpenSSL from asking for a
        # password on the terminal.
        context.load_cert_chain(config.certificate_file, config.key_file, lambda: "")
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"engine: {config.certificate_file} must be a certificate, and {config.key_file} must be its private key without a password, "
            f"as PEM files ({error.reason or error}): correct engine.certificate_file and engine.key_file in conf/sluice.yaml, or the files"
        ) from error
    return grpc.ssl_server_credentials([content])


def channel_to(address: str, config: EngineConfig) -> Any:
    """Returns a gRPC channel to the engine host at `address`. The channel connects at its first call. Raises ConfigurationError if
    `engine.ca_file`, by which the host's certificate is checked, cannot be read or has no certificate.
    """
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *LENGTHS_OF_CALLER,
    ]
    if not config.tls:
        return grpc.insecure_channel(address, options=options)
    trusted = None
    if config.ca_file is not None:
        trusted = _content(config.ca_file)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(config.ca_file)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"engine: {config.ca_file} is not a PEM file with a certificate ({error.reason or error}): correct engine.ca_file in "
                "conf/sluice.yaml, or this file"
            ) from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted), options=options)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"engine: {path} cannot be read ({error.strerror}): correct the path in conf/sluice.yaml, or "
            "permit reading this file"
        ) from error


def _make(path: Path) -> None:
    """Writes a random token to a file in one step. Only the file's owner can read the file. If two processes do this at the same time, the
    file of the first process stays.
    """
    make_folder(path.parent)
    # The name is random, because a crashed process may have left its temporary file.
    temporary = path.with_suffix(f".{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
