"""Creates the token with which an account of RDS or Aurora logs in without a password (`auth: aws-iam`). Only this module uses boto3.

A token is valid for 15 minutes. A token is needed only to open a connection, so each connection gets a new token.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from sluice.cdc_engine.errors import ConfigurationError, SecretUnavailableError
from sluice.extras import Extra, missing_sentence


class Login(Protocol):
    """The server and account for which a token is created."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def aws_region(self) -> str: ...


def iam_token(login: Login) -> str:
    """Returns a new token for a login. Raises ConfigurationError if boto3 is not installed, and SecretUnavailableError if boto3 finds no
    credentials or region of AWS.
    """
    try:
        boto3: Any = importlib.import_module("boto3")
    except ImportError:
        raise ConfigurationError(missing_sentence(Extra.AWS)) from None
    try:
        client = boto3.client("rds", region_name=login.aws_region or None)
        return str(client.generate_db_auth_token(DBHostname=login.host, Port=login.port, DBUsername=login.user))
    # botocore raises exceptions of its own, for example NoCredentialsError and NoRegionError.
    except Exception as error:
        raise SecretUnavailableError(
            f"AWS gave no token for {login.user}@{login.host}:{login.port} ({type(error).__name__}): check the credentials and the region "
            "that boto3 finds, or set aws_region"
        ) from None
