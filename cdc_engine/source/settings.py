"""What conf/ says of a destination's servers: addresses, TLS, heartbeat, and where the stream begins. Part of `cdc_engine.config`."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from cdc_engine import config_paths
from cdc_engine.errors import ConfigurationError
from cdc_engine.time_words import time_us


def root_of(info: ValidationInfo) -> Path | None:
    """The folder that holds conf/; None for a configuration that was not read from files."""
    return info.context["root"] if info.context else None


LocalPath = Annotated[Path, AfterValidator(lambda word, info: config_paths.local_path(str(word), root_of(info)))]


def _time_word(word: Any) -> Any:
    """YAML makes a moment of what looks like one."""
    return word.isoformat() if isinstance(word, dt.date) else word


def _readable_time(word: str) -> str:
    try:
        _ = word and time_us(word, 0)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return word


TimeWord = Annotated[str, BeforeValidator(_time_word), AfterValidator(_readable_time)]


class Strict(BaseModel):
    """A misspelt key is an error, not a default; and a default is checked as what stands in a file is."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TlsConfig(Strict):
    mode: Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] = "PREFERRED"
    ca_file: LocalPath | None = None
    certificate_file: LocalPath | None = None
    key_file: LocalPath | None = None


class SourceConfig(Strict):
    """One MySQL or MariaDB server. `password_env` names the environment variable with the password."""

    host: str = "127.0.0.1"
    port: int = Field(3306, ge=1, le=65535)
    user: str
    password_env: str = Field("", description="environment variable that holds the password; empty: no password")
    tls: TlsConfig = TlsConfig()
    server_id: int = Field(0, ge=0, le=0xFFFFFFFF, description="replica id; 0 derives one from the destination's name")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def password(self) -> str:
        """The secret itself; raises ConfigurationError naming the variable when it is not set."""
        if not self.password_env:
            return ""
        if self.password_env not in os.environ:
            raise ConfigurationError(
                f"the environment variable {self.password_env} with the password of {self.user} is not set"
            )
        return os.environ[self.password_env]


FIRST_OFFSET = 4  # of a binlog file: the bytes before it tell that it is one


class StartConfig(Strict):
    """Where a destination without a saved cursor begins; all empty: at the latest position."""

    file: str = ""
    offset: int = Field(4, ge=4, description="in the file; inside a transaction it means that one's begin")
    gtid_set: str = ""
    earliest: bool = Field(False, description="at the begin of the oldest binlog file that the source has")
    time: TimeWord = Field(
        "",
        description="ISO form with its zone, or -10m: before the first transaction of then or later; with file: in that one alone",
    )

    @model_validator(mode="after")
    def _one_place(self) -> StartConfig:
        ways = [bool(self.file or self.time), bool(self.gtid_set), self.earliest]
        if (
            ways.count(True) > 1
            or (self.time and self.offset != FIRST_OFFSET)
            or (self.offset != FIRST_OFFSET and not self.file)
        ):
            raise ValueError(
                "say where to begin once: file with offset or with time, or time, or gtid_set, or earliest"
            )
        return self


class HeartbeatConfig(Strict):
    """How it is found out that a source is gone for which another one stands by."""

    sql: str = Field("SELECT 1", min_length=1, description="asked on a connection of its own")
    seconds: float = Field(3.0, gt=0, description="from one question to the next")
    timeout_seconds: int = Field(5, ge=1, description="how long an answer may take")
    retries: int = Field(3, ge=0, description="questions in a row that may fail; one more, and a standby takes over")
    switch: bool = Field(True, description="off: it is only said, and `sluice source switch` waits for an operator")
