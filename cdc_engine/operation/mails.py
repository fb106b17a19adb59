"""Sends alarms by email, with the SMTP client of the standard library."""

from __future__ import annotations

import email.utils
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage

import structlog

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.operation.alarms import Alarm

ANSWER_SECONDS = 10.0
SUBJECT_MAX = 120
# The host name that this client sends to the mail server. Without it, smtplib would query a name server for the host's name, which may take
# long.
OUR_NAME = "sluice"

log = structlog.get_logger()


def mail(alarm: Alarm, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Returns the email for an alarm. The subjects of all alarms of a destination begin with the same words, so that mail programs can sort
    the mails by destination.
    """
    found = EmailMessage()
    subject = f"Sluice {alarm.destination}: {alarm.state}{' is over' if alarm.over else ''}, {alarm.key}"
    found["Subject"] = " ".join(subject.split())[:SUBJECT_MAX]
    found["From"], found["To"] = sender, ", ".join(to)
    found["Date"], found["Message-ID"] = email.utils.localtime(), email.utils.make_msgid(domain=OUR_NAME)
    found["Auto-Submitted"] = "auto-generated"
    found.set_content(f"{alarm.text}\n\n`sluice status {alarm.destination}` shows the current state.\n")
    return found


def to_mail_server(config: AlarmConfig, password: str) -> Callable[[Alarm], None]:
    """Returns a handler that sends alarms by email. The handler opens a connection for each alarm, because alarms are rare and an open
    connection would time out. Raises ConfigurationError if the file with the certificate authorities cannot be read.
    """
    context = _trusted(config)

    def send(alarm: Alarm) -> None:
        with _connection(config, context) as server:
            if config.user:
                server.login(config.user, password)
            refused = server.send_message(mail(alarm, config.sender, config.to))
        for address, (code, _) in refused.items():
            # Logs the addresses that the server refused, and raises no error. After an error, the mail would be sent again to all
            # addresses, even to those that have it.
            log.error(
                "alarm_not_accepted",
                destination=alarm.destination,
                about=alarm.key,
                to=address,
                reason=f"answered {code}",
            )

    return send


def _connection(config: AlarmConfig, context: ssl.SSLContext) -> smtplib.SMTP:
    host, port = config.mail_server
    if config.encryption == "tls":
        return smtplib.SMTP_SSL(host, port, OUR_NAME, timeout=ANSWER_SECONDS, context=context)
    server = smtplib.SMTP(host, port, OUR_NAME, timeout=ANSWER_SECONDS)
    try:
        if config.encryption == "starttls":
            server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server


def _trusted(config: AlarmConfig) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"alarms: the file {config.ca_file} with the certificate authorities of the mail server cannot be read "
            f"({error.strerror or error}): correct ca_file"
        ) from None
