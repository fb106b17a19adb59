"""Tests how ssh is called for a bastion, and what its failures mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sluice.cdc_engine.errors import AccessDeniedError, ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.source.tunnel import Bastion, Tunnel, command, failure_of

pytestmark = pytest.mark.managed

BASTION = Bastion(host="jump.example.com", port=2222, user="sluice", key_file=Path("/keys/a 100%"))


def test_the_host_key_is_always_checked_without_a_question() -> None:
    called = command(BASTION, "db.internal", 3306)
    assert {"StrictHostKeyChecking=yes", "UpdateHostKeys=no", "BatchMode=yes", "IdentitiesOnly=yes"} <= set(called)
    assert 'IdentityFile="/keys/a 100%%"' in called
    assert called[called.index("-W") + 1] == "db.internal:3306"
    assert called[-2:] == ["--", "jump.example.com"]
    assert command(BASTION, "2001:db8::1", 3306)[5] == "[2001:db8::1]:3306"


@pytest.mark.parametrize(
    ("reported", "kind", "words"),
    [
        (
            "No ED25519 host key is known for jump\r\nHost key verification failed.",
            ConfigurationError,
            "ssh-keyscan -p",
        ),
        ("sluice@jump: Permission denied (publickey).", AccessDeniedError, "authorized_keys"),
        ('Load key "/keys/a": invalid format', AccessDeniedError, "no passphrase"),
        ("channel 0: open failed: connect failed: Connection refused", SourceConnectionError, "Connection refused"),
        ("", SourceConnectionError, "ended without a reason"),
    ],
)
def test_a_failure_says_what_to_do(reported: str, kind: type[SluiceError], words: str) -> None:
    found = failure_of(BASTION, reported)
    assert type(found) is kind
    assert words in str(found)
    assert "sluice@jump.example.com:2222" in str(found)


def test_a_host_without_ssh_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install OpenSSH's client"):
        Tunnel(BASTION, "db.internal", 3306)


@pytest.mark.parametrize("wrong", ["-oProxyCommand=x", "a b", ""])
@pytest.mark.parametrize("setting", ["host", "user"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(setting: str, wrong: str) -> None:
    ssh = {"host": "jump", "user": "sluice", setting: wrong}
    with pytest.raises(ValidationError, match=f"ssh.{setting}"):
        SourceConfig.model_validate({"user": "sluice", "ssh": ssh})
