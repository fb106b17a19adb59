"""Defines the setting `alarms` of conf/sluice.yaml."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sluice.cdc_engine.config.brokers import address_of
from sluice.cdc_engine.source.settings import LocalFile, OnlyWith, SecretReference, SecretText, Strict

_MAIL_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
MAIL_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class AlarmConfig(Strict):
    """Who gets a message when an engine or a table stops or has another problem, and when such a problem ends."""

    only_with: ClassVar[OnlyWith] = {
        **dict.fromkeys(("url", "headers"), ("kind", ("webhook",))),
        **dict.fromkeys(("server", "encryption", "ca_file", "user", "password", "sender", "to"), ("kind", ("email",))),
    }

    kind: Literal["log", "webhook", "email"] = Field(
        description="How an alarm is sent: only to the log, by a webhook or by email."
    )
    url: SecretText = Field(
        "",
        description=(
            "URL to which Sluice sends a POST with JSON, for `webhook`. If the URL is secret, write `$NAME`, `{file: "
            "PATH}` or `{command: [PROGRAM]}`."
        ),
    )
    headers: dict[str, SecretText] = Field(
        {},
        description="HTTP headers for `webhook`. Write secrets as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`.",
    )
    server: str = Field("", description="SMTP server as `host` or `host:port`, for `email`.")
    encryption: Literal["starttls", "tls", "none"] = Field("starttls", description="Encryption of the SMTP connection.")
    ca_file: LocalFile | None = Field(
        None, description="PEM file with the trusted certificate authorities. Default: the system's."
    )
    user: str = Field("", description="User name at the SMTP server. Empty: no login.")
    password: SecretReference = Field(
        "", description="Password of the user, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )
    sender: str = Field("", description="Sender address of the emails.")
    to: tuple[str, ...] = Field((), description="Recipient addresses of the emails.")

    @property
    def mail_server(self) -> tuple[str, int]:
        """Host and port of the SMTP server. The default port depends on the encryption. Raises ValueError if `server` is not an address."""
        return address_of(self.server, MAIL_PORTS[self.encryption])

    @model_validator(mode="after")
    def _reachable(self) -> AlarmConfig:
        if self.kind == "webhook" and not self.url.startswith(("http://", "https://", "$")):
            raise ValueError("a webhook needs a url: http://…, https://… or $NAME")
        if self.kind == "email":
            self._can_be_mailed()
        return self

    def _can_be_mailed(self) -> None:
        if not self.server:
            raise ValueError("an email needs a server: host or host:port, such as mail.example.com:587")
        _ = self.mail_server
        wrong = [each for each in (self.sender, *self.to) if not _MAIL_ADDRESS.fullmatch(each)]
        if wrong or not self.to:
            raise ValueError(
                "an email needs an email address in `sender`, and at least one email address in `to`; wrong: "
                f"{', '.join(map(repr, wrong)) or '`to` is empty'}"
            )
        if bool(self.user) != bool(self.password):
            raise ValueError("set both user and password, or neither")
        if self.user and self.encryption == "none":
            raise ValueError(
                "`encryption: none` would send the password unencrypted: set `encryption` to starttls or tls"
            )
        if self.ca_file and self.encryption == "none":
            raise ValueError("`ca_file` has no effect with `encryption: none`: remove one of the two")
