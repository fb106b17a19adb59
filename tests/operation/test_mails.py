"""Tests alarms by email with a real SMTP server that the test starts: a login over TLS, and what is logged if sending fails."""

from __future__ import annotations

import dataclasses
import email
import email.policy
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from pydantic import ValidationError
from structlog.testing import capture_logs

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.operation.alarms import Alarm
from sluice.cdc_engine.operation.handlers import TRIES, AlarmSender, handler_of
from sluice.cdc_engine.operation.mails import SUBJECT_MAX, mail
from sluice.console.toolchain.ports import LOOPBACK, free_port
from tests.certificates import make_certificate

SECRET = "open-sesame"  # noqa: S105
NOBODY = "nobody@example.com"
ALARM = Alarm(destination="shop", key="engine", state="LEDGER_LOST", text="the ledger is gone\nmake it again: ünïcode")


class Post:
    """An SMTP server that requires a login once the connection is encrypted, and the mails that it received."""

    def __init__(self, folder: Path) -> None:
        self.mails: list[EmailMessage] = []
        self.certificate, key = make_certificate(folder)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(self.certificate, key)

    def listening(self, **how: Any) -> Controller:
        return Controller(self, hostname=LOOPBACK, port=free_port(), server_hostname="post", **how)

    async def handle_RCPT(  # noqa: N802  its name there
        self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address == NOBODY:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.mails.append(email.message_from_bytes(envelope.original_content or b"", policy=email.policy.default))
        return "250 kept"


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Post:
    monkeypatch.setenv("POST_PASSWORD", SECRET)
    return Post(tmp_path)


@pytest.fixture
def port(post: Post) -> Iterator[int]:
    """Returns the port of a server that requires STARTTLS and a login."""
    controller = post.listening(
        tls_context=post.tls,
        require_starttls=True,
        auth_required=True,
        authenticator=lambda _server, _session, _envelope, _how, given: AuthResult(
            success=isinstance(given, LoginPassword) and given.password == SECRET.encode(),
            handled=False,  # The server itself answers.
        ),
    )
    controller.start()
    yield controller.port
    controller.stop()


def config(post: Post, port: int, **said: Any) -> AlarmConfig:
    login = {"user": "sluice", "password": "$POST_PASSWORD"}
    addresses = {"sender": "sluice@example.com", "to": ["one@example.com", "two@example.com"]}
    where = {"kind": "email", "server": f"{LOOPBACK}:{port}", "ca_file": post.certificate}
    return AlarmConfig.model_validate({**where, **login, **addresses, **said})


def log_of(config: AlarmConfig, *alarms: Alarm) -> list[Any]:
    with capture_logs() as said:
        sender = AlarmSender([handler_of(config)], pause=lambda _: None)
        for alarm in alarms:
            sender.send(alarm)
        sender.close()
    return list(said)


def test_an_alarm_and_its_end_go_by_email_with_a_login_over_starttls_admin(post: Post, port: int) -> None:
    over = Alarm(destination="shop", key="table a\nb", state="DDL_UNSUPPORTED", text="why", over=True)
    assert log_of(config(post, port), ALARM, over) == []
    first, second = post.mails
    assert first["Subject"] == "Sluice shop: LEDGER_LOST, engine"
    assert (first["From"], first["To"]) == ("sluice@example.com", "one@example.com, two@example.com")
    assert ALARM.text.splitlines() == first.get_content().splitlines()[:2]
    assert second["Subject"] == "Sluice shop: DDL_UNSUPPORTED is over, table a b"


def test_an_email_goes_over_tls_and_an_address_that_is_refused_is_named_admin(post: Post) -> None:
    controller = post.listening(ssl_context=post.tls)
    controller.start()
    try:
        plain = config(post, controller.port, encryption="tls", user="", password="")
        (line,) = log_of(plain.model_copy(update={"to": ("one@example.com", NOBODY)}), ALARM)
        of_nobody = log_of(plain.model_copy(update={"to": (NOBODY,)}), ALARM)
    finally:
        controller.stop()
    assert (line["event"], line["to"], line["reason"]) == ("alarm_not_accepted", NOBODY, "answered 550")
    assert len(post.mails) == 1
    assert (of_nobody[0]["reason"], of_nobody[-1]["event"]) == ("answered 550 to each address", "alarm_dropped")


def test_an_email_that_is_refused_is_logged_without_its_secret_admin(
    post: Post, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POST_PASSWORD", "wrong-sesame")
    said = log_of(config(post, port), ALARM)
    assert [line["reason"] for line in said] == ["answered 535"] * TRIES + [
        f"the receiver did not accept the alarm in {TRIES} attempts"
    ]
    assert "sesame" not in str(said)
    plain = config(post, port, encryption="none", ca_file=None, user="", password="")
    assert "answered 530" in str(log_of(plain, ALARM))
    assert "SSLCertVerificationError" in str(log_of(config(post, port, ca_file=None), ALARM))
    assert "ConnectionRefusedError" in str(log_of(config(post, free_port()), ALARM))
    assert not post.mails


def test_the_authorities_of_a_mail_server_that_cannot_be_read_are_named_admin(post: Post, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem with the certificate authorities .*No such file"):
        handler_of(config(post, 25, ca_file=tmp_path / "nowhere.pem"))


@pytest.mark.parametrize(("encryption", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_the_port_of_a_mail_server_is_that_of_its_encryption_unless_said_admin(encryption: str, port: int) -> None:
    record = {"kind": "email", "encryption": encryption, "sender": "a@b", "to": ["c@d"]}
    assert AlarmConfig.model_validate({**record, "server": "mail"}).mail_server == ("mail", port)
    assert AlarmConfig.model_validate({**record, "server": "[::1]:26"}).mail_server == ("::1", 26)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"server": ""}, "an email needs a server: host or host:port"),
        ({"server": "mail:none"}, "'mail:none' is not an address"),
        ({"to": []}, "`to` is empty"),
        ({"to": ["one@example.com, two@example.com"]}, "'one@example.com, two@example.com'"),
        ({"sender": "sluice"}, "an email address in `sender`, and at least one email address in `to`; wrong: 'sluice'"),
        ({"user": ""}, "set both user and password"),
        ({"password": SECRET}, "write .NAME of an environment variable"),
        ({"encryption": "none"}, "would send the password unencrypted"),
        ({"encryption": "none", "user": "", "password": ""}, "`ca_file` has no effect with `encryption: none`"),
    ],
)
def test_an_email_in_conf_that_is_wrong_is_reported_admin(post: Post, said: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValidationError, match=wanted):
        config(post, 25, **said)


def test_the_subject_of_a_mail_is_one_line_of_limited_length_admin() -> None:
    long = dataclasses.replace(ALARM, key="a table\nwith a name " * 100)
    subject = mail(long, "sluice@example.com", ("ann@example.com",))["Subject"]
    assert len(subject) == SUBJECT_MAX
    assert subject.startswith("Sluice shop: LEDGER_LOST, a table with a name a table")
