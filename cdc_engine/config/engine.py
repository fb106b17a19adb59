"""Defines the setting `engine`: whether engines run in Dagster's code server, or in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sluice.cdc_engine.source.settings import LocalFile, OnlyWith, SecretReference, Strict, moved_secret

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_ADDRESS = "127.0.0.1:4267"


def host_and_port(address: str) -> tuple[str, int]:
    """Parses "host:port". If `address` has another form, raises ValueError, whose message says what to write instead."""
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not an address; write host:port, such as 127.0.0.1:4267")
    return host, int(port)


class EngineConfig(Strict):
    """Where engines run: in Dagster's code server, or in `./sluice engine` processes that the code server calls."""

    removed: ClassVar[Mapping[str, str]] = {
        **moved_secret("token"),
        "certificate": "write `certificate_file`",
        "key": "write `key_file`",
        "authority": "write `ca_file`",
    }
    only_with: ClassVar[OnlyWith] = dict.fromkeys(
        ("address", "listen", "token", "certificate_file", "key_file", "ca_file"), ("kind", ("remote",))
    )

    kind: Literal["embedded", "remote"] = Field(
        "embedded",
        description=(
            "Where engines run. `embedded`: in Dagster's code server. `remote`: in `sluice engine` processes, which the "
            "code server calls."
        ),
    )
    address: str = Field(
        "",
        description=f"With `remote`: `host:port` of each engine host, separated by commas. Default: `{DEFAULT_ADDRESS}`.",
    )
    listen: str = Field(
        "",
        description=(
            "With `remote`: `host:port` on which the engine process of this host listens. Required if `address` names "
            "several hosts. Default: `address`."
        ),
    )
    token: SecretReference = Field(
        "",
        description="Token that the engine hosts and their callers share, as `$NAME`, `{file: PATH}` or "
        "`{command: [PROGRAM]}`. Default: a token of this machine in `data_dir`.",
    )
    certificate_file: LocalFile | None = Field(
        None, description="PEM file with the engine host's certificate. Enables TLS."
    )
    key_file: LocalFile | None = Field(None, description="PEM file with the key of the certificate.")
    ca_file: LocalFile | None = Field(
        None, description="PEM file with the trusted certificate authorities. Default: the system's."
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in (self.address or DEFAULT_ADDRESS).split(","))

    @property
    def listens_at(self) -> str:
        return self.listen or self.addresses[0]

    @property
    def tls(self) -> bool:
        return self.certificate_file is not None or self.ca_file is not None

    @model_validator(mode="after")
    def _safe(self) -> EngineConfig:
        addresses = [*self.addresses, self.listens_at]
        if len(self.addresses) > 1 and not self.listen:
            raise ValueError(
                "engine.address names several hosts, so set the address on which each listens: engine.listen, such as 0.0.0.0:4267"
            )
        far = [address for address in addresses if host_and_port(address)[0] not in LOOPBACK]
        if far and not (self.token and self.tls):
            raise ValueError(
                f"{far[0]} can be reached from other hosts, so it needs a token and TLS: set engine.token on all hosts; set "
                "engine.certificate_file and engine.key_file on hosts where an engine listens, and engine.ca_file on the others"
            )
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("set both engine.certificate_file and engine.key_file, or neither")
        return self
