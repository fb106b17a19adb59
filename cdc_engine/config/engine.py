"""Where the engines run: inside Dagster's code server, or in processes of their own that it calls."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cdc_engine.source.settings import LocalPath, Strict

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def host_and_port(word: str) -> tuple[str, int]:
    """Raises ValueError with what to write instead."""
    host, _, port = word.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{word!r} is no address; write host:port, such as 127.0.0.1:4267")
    return host, int(port)


class EngineConfig(Strict):
    """`remote`: `./sluice engine` is a process of its own, on this host or on others; Dagster's code server calls it."""

    kind: Literal["embedded", "remote"] = "embedded"
    address: str = Field(
        "127.0.0.1:4267",
        description="of remote: host:port of each engine host, separated by commas; which of them has a destination is found out",
    )
    listen: str = Field("", description="of remote: host:port where an engine host listens; empty: its address")
    token_env: str = Field(
        "",
        description="variable with the token that both sides know; empty: one of this machine's own in <data_dir>/engine-token",
    )
    certificate: LocalPath | None = Field(None, description="of an engine host, PEM; with it all is TLS")
    key: LocalPath | None = Field(None, description="of the certificate, PEM")
    authority: LocalPath | None = Field(None, description="whose certificates are trusted, PEM; empty: the system's")

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.address.split(","))

    @property
    def listens_at(self) -> str:
        return self.listen or self.addresses[0]

    @property
    def tls(self) -> bool:
        return self.certificate is not None or self.authority is not None

    @model_validator(mode="after")
    def _safe(self) -> EngineConfig:
        words = [*self.addresses, self.listens_at]
        if len(self.addresses) > 1 and not self.listen:
            raise ValueError("with several engine hosts say where each listens: listen: 0.0.0.0:4267")
        far = [word for word in words if host_and_port(word)[0] not in LOOPBACK]
        if far and not (self.token_env and self.tls):
            raise ValueError(
                f"{far[0]} can be reached from other hosts: name a token (token_env), and a certificate and its key, or the authority "
                "where none listens"
            )
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self
