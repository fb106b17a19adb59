"""Creates the token with which an account of RDS or Aurora logs in without a password (`auth: aws-iam`). Only this module uses boto3.

A token is valid for 15 minutes. A token is needed only to open a connection, so each connection gets a new token.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Protocol

from sluice.cdc_engine.errors import ConfigurationError, SecretUnavailableError
from sluice.extras import Extra, missing_sentence

# Finds the region in an endpoint such as `shop.abc.eu-west-1.rds.amazonaws.com`, or in China `shop.abc.rds.cn-north-1.amazonaws.com.cn`.
ENDPOINT = re.compile(r"\.(?:([a-z]{2}(?:-[a-z]+)+-\d+)\.rds|rds\.([a-z]{2}(?:-[a-z]+)+-\d+))\.")


class Login(Protocol):
    """The server and account for which a token is created."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def user(self) -> str: ...


def iam_token(login: Login) -> str:
    """Returns a new token for a login. Raises ConfigurationError if boto3 is not installed, and SecretUnavailableError if AWS gives no
    token, for example because boto3 finds no credentials.
    """
    try:
        boto3: Any = importlib.import_module("boto3")
    except ImportError:
        raise ConfigurationError(missing_sentence(Extra.AWS)) from None
    try:
        client = boto3.client("rds", region_name=_region(login.host))
        return str(client.generate_db_auth_token(DBHostname=login.host, Port=login.port, DBUsername=login.user))
    # Catches all errors, because botocore raises exceptions of its own, for example NoCredentialsError and NoRegionError.
    except Exception as error:
        raise SecretUnavailableError(
            f"AWS gave no token for {login.user}@{login.host}:{login.port} ({type(error).__name__}): check the credentials that boto3 "
            "finds, and whether `host` is the endpoint's own name, which contains the region"
        ) from None


def _region(host: str) -> str | None:
    """Returns the region that the name of an endpoint of RDS or Aurora contains. Returns None for another name, for which boto3 uses its
    own default region.
    """
    found = ENDPOINT.search(host.lower())
    return (found[1] or found[2]) if found else None
