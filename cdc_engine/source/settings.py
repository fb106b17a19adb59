"""Defines the settings of a destination's servers: addresses, TLS, heartbeat, and where the stream starts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from sluice.cdc_engine import config_paths, limits
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.time_text import time_us
from sluice.secret_values import SecretLocation, is_reference

# The addresses on which only processes of the same host can reach a server.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def root_of(info: ValidationInfo) -> Path | None:
    """Returns the folder that contains conf/, or None for a configuration that was not read from files."""
    return info.context["root"] if info.context else None


LocalPath = Annotated[Path, AfterValidator(lambda path, info: config_paths.local_path(str(path), root_of(info)))]
LocalFile = Annotated[Path, AfterValidator(lambda path, info: config_paths.local_file(str(path), root_of(info)))]


def _time_text(value: Any) -> Any:
    """Converts a date object, to which YAML converts an ISO date, back to ISO text. Returns any other value unchanged."""
    return value.isoformat() if isinstance(value, dt.date) else value


def _readable_time(value: str) -> str:
    try:
        _ = value and time_us(value, 0)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return value


# The type of `Strict.only_with`.
OnlyWith = Mapping[str, tuple[str, tuple[str, ...]]]
TimeSetting = Annotated[str, BeforeValidator(_time_text), AfterValidator(_readable_time)]


class Strict(BaseModel):
    """A model of settings that refuses unknown settings and settings without effect, and validates defaults too.

    - `removed`: the settings of earlier versions of Sluice that no longer exist, each with the text that says what to write instead.
    - `only_with`: setting → (other setting, values). The setting has an effect only if the other setting has one of the values. If `values`
      is empty, the other setting must not be empty. A setting without effect is accepted if its value in conf/ is its default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    removed: ClassVar[Mapping[str, str]] = {}
    only_with: ClassVar[OnlyWith] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_removed_setting(cls, record: Any) -> Any:
        if isinstance(record, dict) and (found := next(filter(cls.removed.__contains__, record), None)):
            raise ValueError(f"the setting {found} was removed: {cls.removed[found]}")
        return record

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> Self:
        for setting, (other, values) in self.only_with.items():
            decides = getattr(self, other)
            if self.is_default(setting) or (decides in values if values else decides):
                continue
            if not values:
                raise ValueError(f"`{setting}` has no effect without `{other}`: set `{other}`, or remove `{setting}`")
            wanted = " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
            raise ValueError(
                f"`{setting}` has no effect with `{other}: {decides}`: set `{other}` to {wanted}, or remove `{setting}`"
            )
        return self

    def is_default(self, setting: str) -> bool:
        """Returns whether a setting has its default value."""
        return bool(getattr(self, setting) == type(self).model_fields[setting].default)


def refuse_without_port(settings: Strict) -> None:
    """Raises ValueError if conf/ has settings for a server but no `port`, because the server does not start without `port`. With `port: 0`,
    which switches the server off, the other settings may stay.
    """
    if "port" not in settings.model_fields_set and not all(map(settings.is_default, settings.model_fields_set)):
        raise ValueError("without `port`, the server does not start: set `port`, or remove the other settings")


def moved_secret(setting: str) -> dict[str, str]:
    """Returns entries for `Strict.removed`: the settings of earlier versions that named the location of the secret `setting`, each with the
    text that says what to write instead.
    """
    return {
        f"{setting}_env": f"write `{setting}: $NAME`",
        f"{setting}_file": f"write `{setting}: {{file: PATH}}`",
        f"{setting}_command": f"write `{setting}: {{command: [PROGRAM, ARGUMENT]}}`",
    }


class SecretConfig(Strict):
    """The location of a secret: an environment variable, a file, or the output of a command. `$NAME` is short for `{env: NAME}`."""

    env: str = Field("", description="Environment variable with the secret.")
    file: LocalFile | None = Field(
        None, description="File with the secret, read at each connect. A line end after the secret is ignored."
    )
    command: tuple[str, ...] = Field(
        (),
        description=(
            "Program and arguments that write the secret to standard output. Sluice runs the program at each "
            "connect, for 20 seconds at most."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, given: Any) -> Any:
        return {"env": given[1:]} if isinstance(given, str) and is_reference(given) else given

    @model_validator(mode="after")
    def _exactly_one(self) -> SecretConfig:
        if [bool(self.env), self.file is not None, bool(self.command)].count(True) != 1:
            raise ValueError("set exactly one of env (the name of an environment variable), file and command")
        _ = self.location
        return self

    @property
    def location(self) -> SecretLocation:
        return SecretLocation(env=self.env, file=self.file, command=self.command)


def _reference(given: Any, info: ValidationInfo) -> Any:
    """Converts the location of a secret, such as `{file: …}`, `{command: […]}` or `{env: NAME}`, to a text that names the same location.
    A text that does not begin with `$` stays as it is. Raises ValueError for a text that begins with `$` but is no location.
    """
    if isinstance(given, str) and is_reference(given):
        return SecretLocation.of(given).reference
    if not isinstance(given, dict):
        return given
    return SecretConfig.model_validate(given, context=info.context).location.reference


def _location_only(text: str) -> str:
    if text and not is_reference(text):
        raise ValueError("write $NAME of an environment variable, {file: …} or {command: […]}, not the secret itself")
    return text


# A text, or the location of a secret: `$NAME`, `{file: PATH}` or `{command: [PROGRAM, ARGUMENT]}`.
SecretText = Annotated[str, BeforeValidator(_reference)]
# The location of a secret. A text that is not a location is refused. Empty means no secret.
SecretReference = Annotated[SecretText, AfterValidator(_location_only)]


class TlsFilesConfig(Strict):
    """Certificates for TLS with a server."""

    only_with: ClassVar[OnlyWith] = {"key_file": ("certificate_file", ())}

    ca_file: LocalFile | None = Field(
        None, description="PEM file with the trusted certificate authorities. Default: the system's."
    )
    certificate_file: LocalFile | None = Field(
        None, description="PEM file with the client certificate, if the server requires one."
    )
    key_file: LocalFile | None = Field(None, description="PEM file with the key of the client certificate.")


class TlsConfig(TlsFilesConfig):
    only_with: ClassVar[OnlyWith] = {
        **TlsFilesConfig.only_with,
        "ca_file": ("mode", ("VERIFY_CA", "VERIFY_IDENTITY")),
        "certificate_file": ("mode", ("PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")),
    }

    mode: Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] = Field(
        "PREFERRED",
        description=(
            "As MySQL's `--ssl-mode`. `REQUIRED`: the connection must be encrypted. `VERIFY_CA`: in addition, an "
            "authority in `ca_file` must have signed the server's certificate. `VERIFY_IDENTITY`: as `VERIFY_CA`, and the "
            "certificate must be for `host`."
        ),
    )


def _plain_name(name: str) -> str:
    if name.startswith("-") or any(each.isspace() for each in name):
        raise ValueError(
            f"{name!r} cannot be a host or user name for ssh, because the name begins with - or has a blank"
        )
    return name


SshName = Annotated[str, Field(min_length=1), AfterValidator(_plain_name)]


class SshConfig(Strict):
    """A bastion: a host with an SSH server, through which the system's `ssh` reaches the database server."""

    host: SshName = Field(description="Host name or IP address of the bastion.")
    port: int = Field(22, ge=1, le=65535, description="Port of the bastion's SSH server.")
    user: SshName = Field(description="User name on the bastion.")
    key_file: LocalFile | None = Field(
        None, description="File with the private key, without a passphrase. Default: ssh's agent and default keys."
    )
    known_hosts_file: LocalFile | None = Field(
        None, description="File with the bastion's host key, which is always checked. Default: ssh's own files."
    )


class SourceConfig(Strict):
    """A MySQL or MariaDB server."""

    removed: ClassVar[Mapping[str, str]] = {
        **moved_secret("password"),
        "aws_region": "`host` names the region, because AWS creates tokens only for the endpoint's own name",
    }

    host: str = Field("127.0.0.1", description="Host name or IP address of the server.")
    port: int = Field(3306, ge=1, le=65535, description="Port of the server.")
    user: str = Field(description="User name on the server.")
    password: SecretReference = Field(
        "",
        description="Password of the user, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`. Read at each connect. "
        "Empty: no password.",
    )
    auth: Literal["password", "aws-iam"] = Field(
        "password",
        description=(
            "How Sluice logs in. `aws-iam`: with a new token of AWS for each connection instead of a password. Needs "
            "boto3 (`pip install 'sluice[aws]'`), the endpoint's own name in `host`, and `tls.mode` `VERIFY_CA` or "
            "`VERIFY_IDENTITY`."
        ),
    )
    tls: TlsConfig = TlsConfig()
    ssh: SshConfig | None = Field(
        None,
        description=(
            "Bastion through which the server is reached. `host` and `port` are the server's address as seen "
            "from the bastion."
        ),
    )
    server_id: int = Field(
        0,
        ge=0,
        le=0xFFFFFFFF,
        description=(
            "Replica ID (server_id) of the engine, which must differ from the IDs of all other replicas of the "
            "server. 0: Sluice derives the ID from the installation and the destination's name."
        ),
    )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @model_validator(mode="after")
    def _safe_login(self) -> SourceConfig:
        if self.auth == "password":
            return self
        if self.password:
            raise ValueError("auth aws-iam needs no password: remove password")
        if self.tls.mode not in {"VERIFY_CA", "VERIFY_IDENTITY"}:
            raise ValueError(
                "auth aws-iam sends the token in clear text within the connection: set tls.mode to "
                "VERIFY_IDENTITY, and ca_file to the provider's certificate authorities"
            )
        return self

    def password_now(self) -> str:
        """Returns the current password, or "" if none is configured. Raises SecretUnavailableError if it cannot be read."""
        return filled(self.password, f"the password of {self.user}@{self.address}")


FIRST_OFFSET = 4  # The offset of the first event in a binlog file, after a magic number of 4 bytes.


class StartConfig(Strict):
    """Where a destination without a cursor starts. If all fields are empty, it starts at the source's current position."""

    file: str = Field("", description="Binlog file at which a destination without a cursor starts.")
    offset: int = Field(
        4,
        ge=4,
        description="Offset in bytes in `file`. An offset inside a transaction means the beginning of that transaction.",
    )
    gtid_set: str = Field(
        "", description="Executed GTID set. The destination starts after the transactions of this set."
    )
    earliest: bool = Field(
        False, description="Whether the destination starts at the oldest binlog file that the source has."
    )
    time: TimeSetting = Field(
        "",
        description="ISO time with a time zone, or a time relative to the engine's start, such as `-30s`, `-10m`, `-2h` or "
        "`-1d`. The destination starts before the first transaction that committed at that time or later. With `file`: "
        "Sluice searches only that file.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> StartConfig:
        ways = [bool(self.file or self.time), bool(self.gtid_set), self.earliest]
        if (
            ways.count(True) > 1
            or (self.time and self.offset != FIRST_OFFSET)
            or (self.offset != FIRST_OFFSET and not self.file)
        ):
            raise ValueError(
                "set only one kind of start: file with offset, file with time, time, gtid_set, or earliest"
            )
        return self


class ListedSourceConfig(SourceConfig):
    """One of several sources of a destination."""

    start: StartConfig | None = Field(
        None,
        description="Where a destination without a cursor starts on this standby source. Default: the destination's "
        "`start`, unless `start` names a file, because file names belong to the primary server.",
    )


class HeartbeatConfig(Strict):
    """How the engine detects the failure of a source that has a standby source."""

    removed: ClassVar[Mapping[str, str]] = {
        "timeout_seconds": f"a check fails after {limits.HEARTBEAT_QUERY_SECONDS_MAX} seconds without an answer; `retries` sets "
        "how many consecutive checks may fail"
    }

    sql: str = Field(
        "SELECT 1",
        min_length=1,
        description="Query by which the engine checks, over a separate connection, whether a source answers.",
    )
    seconds: float = Field(3.0, gt=0, description="Seconds between two checks.")
    retries: int = Field(
        3, ge=0, description="Number of consecutive checks that may fail. The next failed check triggers the failover."
    )
    switch: bool = Field(
        True,
        description=(
            "Whether the engine itself switches to another source. `false`: the engine reports the failure and waits for "
            "`sluice source switch`."
        ),
    )
