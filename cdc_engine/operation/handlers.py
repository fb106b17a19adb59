"""Sends alarms to the log, to a webhook, or by email. Each entry of `alarms` in conf/ becomes a handler. Each handler has its own thread,
so a slow handler delays neither the other handlers nor an engine.

If the receiver does not accept an alarm, the handler sends it again, TRIES times in all. Then it drops the alarm and writes a line to the
log. `sluice status` shows the problem as long as the problem lasts.
"""

from __future__ import annotations

import json
import queue
import re
import smtplib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.environment import described, filled
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.operation.alarms import Alarm
from sluice.cdc_engine.operation.mails import to_mail_server

WAITING_MAX = 1000
TRIES, PAUSE_SECONDS = 5, 1.0
ANSWER_SECONDS = 10.0
WEBHOOK = re.compile(r"https?://[^\s/]\S*", re.IGNORECASE)

log = structlog.get_logger()
# A function that sends an alarm. If the receiver does not accept the alarm, the function raises an error, and is called again later.
Handler = Callable[[Alarm], None]


def to_log(alarm: Alarm) -> None:
    say = log.info if alarm.over else log.error
    say(
        "alarm_over" if alarm.over else "alarm",
        destination=alarm.destination,
        state=alarm.state,
        about=alarm.key,
        reason=alarm.text,
    )


def to_webhook(url: str, headers: dict[str, str]) -> Handler:
    """Returns a handler that sends a POST with the fields of the alarm as JSON: destination, state, about (the alarm's key), text, over
    (whether the problem has ended), and at (seconds since 1970).
    """

    def send(alarm: Alarm) -> None:
        record = {
            "destination": alarm.destination,
            "state": alarm.state,
            "about": alarm.key,
            "text": alarm.text,
            "over": alarm.over,
            "at": round(time.time(), 3),
        }
        request = urllib.request.Request(  # noqa: S310  conf/ takes http and https alone
            url, json.dumps(record).encode(), {"Content-Type": "application/json", **headers}
        )
        with _opener().open(request, timeout=ANSWER_SECONDS):
            pass

    return send


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error. If urllib followed the redirect, the POST would become a GET without the alarm, and another server
    would get the secrets in the headers.
    """

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Returns None, so that urllib raises the answer as an HTTPError."""


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)


def handler_of(config: AlarmConfig) -> Handler:
    """Returns the handler for an entry of `alarms` in conf/. Raises ConfigurationError if a secret cannot be read, if the location of a
    webhook's URL contains another text, or if a file with certificate authorities cannot be read.
    """
    if config.kind == "log":
        return to_log
    if config.kind == "email":
        return to_mail_server(config, filled(config.password, "alarms"))
    url = filled(config.url, "alarms").strip()  # A variable often ends with a line end.
    if not WEBHOOK.fullmatch(url):  # Does not quote the text, because it may be a secret.
        raise ConfigurationError(
            f"alarms: {described(config.url)} does not contain the URL of a webhook: write http://… or https://… there, without blanks"
        )
    return to_webhook(url, {name: filled(value, "alarms") for name, value in config.headers.items()})


class AlarmSender:
    """Sends alarms to all handlers. `pause(seconds)` waits between two attempts to send an alarm."""

    def __init__(self, handlers: Sequence[Handler], pause: Callable[[float], object] = time.sleep) -> None:
        self._each = [_HandlerQueue(handler, pause) for handler in handlers]

    def send(self, alarm: Alarm) -> None:
        """Queues the alarm for the handlers' threads, and returns without waiting. If the queue of a handler is full, logs that this
        handler does not send the alarm.
        """
        for handler in self._each:
            handler.send(alarm)

    def close(self) -> None:
        """Waits until the threads have sent or dropped the queued alarms, and ends the threads."""
        for handler in self._each:
            handler.close()


class _HandlerQueue:
    """Queues alarms for one handler, and runs the handler in a separate thread."""

    def __init__(self, handler: Handler, pause: Callable[[float], object]) -> None:
        self._handler, self._pause = handler, pause
        self._waiting: queue.Queue[Alarm | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
        self._thread.start()

    def send(self, alarm: Alarm) -> None:
        try:
            self._waiting.put_nowait(alarm)
        except queue.Full:
            log.error(
                "alarm_dropped",
                destination=alarm.destination,
                about=alarm.key,
                reason="too many alarms wait to be sent",
            )

    def close(self) -> None:
        """Waits until the thread has sent or dropped the queued alarms, and ends the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (alarm := self._waiting.get()) is not None:
            self._deliver(alarm)

    def _deliver(self, alarm: Alarm) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._handler(alarm)
            except Exception as error:  # Catches all errors, because an error of the handler must not end the thread.
                log.warning("alarm_not_accepted", about=alarm.key, attempt=attempt, reason=_why(error))
                if attempt < TRIES:
                    self._pause(PAUSE_SECONDS * 2 ** (attempt - 1))
            else:
                return
        log.error(
            "alarm_dropped",
            destination=alarm.destination,
            about=alarm.key,
            reason=f"the receiver did not accept the alarm in {TRIES} attempts",
        )


def _why(error: Exception) -> str:
    """Returns why an alarm was not accepted, without the address and the server's own text, which may contain secrets."""
    if isinstance(error, urllib.error.HTTPError):
        redirect = ", a redirect: write the final address in `alarms`" if 300 <= error.code < 400 else ""
        return f"answered {error.code}{redirect}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"answered {error.smtp_code}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"answered {', '.join(sorted({str(code) for code, _ in error.recipients.values()}))} to each address"
    return type(error).__name__
