"""Who is told of what is wrong: `alarms` of conf/sluice.yaml."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from cdc_engine.config.brokers import address_of
from cdc_engine.source.settings import LocalPath, Strict

_MAIL_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
MAIL_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class AlarmConfig(Strict):
    """Who is told when an engine or a table stops, or something is wrong, and when it is over."""

    kind: Literal["log", "webhook", "email"]
    url: str = Field("", description="of a webhook, which gets a POST of JSON; $NAME: as that variable says")
    headers: dict[str, str] = Field({}, description="of a webhook; values may be $NAME of the environment")
    server: str = Field("", description="of an email: host, or host:port, of the SMTP server that takes it")
    encryption: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="of the line to it: asked for in plain words, from the first byte on, or none"
    )
    ca_file: LocalPath | None = Field(None, description="PEM with the authorities; empty: those of the system")
    user: str = Field("", description="at that server; empty: it asks for none")
    password: str = Field("", description="of that user: $NAME of the environment")
    sender: str = Field("", description="address that emails come from")
    to: tuple[str, ...] = Field((), description="addresses that they go to")

    @property
    def mail_server(self) -> tuple[str, int]:
        """Host and port; the port of the encryption, where none is said. Raises ValueError."""
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
            raise ValueError("an email needs a server: host:port, such as mail.example.com:587")
        _ = self.mail_server
        wrong = [each for each in (self.sender, *self.to) if not _MAIL_ADDRESS.fullmatch(each)]
        if wrong or not self.to:
            raise ValueError(
                f"an email needs sender and to, addresses each: {', '.join(map(repr, wrong)) or 'to is empty'}"
            )
        if bool(self.user) != bool(self.password):
            raise ValueError("say user and password, both, or neither")
        if self.password and not self.password.startswith("$"):
            raise ValueError("password must be $NAME of a variable of the environment, not the secret itself")
        if self.user and self.encryption == "none":
            raise ValueError("encryption none would send the password in plain words")
