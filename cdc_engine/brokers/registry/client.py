"""Looks up and registers schemas in a schema registry over HTTP, with Confluent's API. The only file that connects to a registry."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from sluice.cdc_engine.config.brokers import RegistryConfig
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import PublishError

ANSWER_SECONDS_MAX = 5.0  # Connecting and the request may each take this long. A call that takes longer fails.
ANSWER_BYTES_MAX, SAID_CHARS = 1 << 20, 400
# `earlier` reads at most this many versions of a subject before the latest one. Older versions are not found.
VERSIONS_MAX = 50
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
AVRO_TYPE = "AVRO"  # The type of a schema if the registry's answer names no type.
OK, NOT_FOUND = 200, 404


class SchemaRegistry(Protocol):
    """A schema registry. Not thread-safe. If the registry refuses a request or does not answer, methods raise a PublishError whose message
    says what to do. The batch is then sent again.
    """

    where: str

    def known(self, subject: str, schema: str) -> int | None:
        """Returns the id of a schema, or None if the subject does not have the schema."""

    def latest(self, subject: str) -> str | None:
        """Returns the schema of the subject's latest version, or None if the subject has no version."""

    def earlier(self, subject: str) -> Iterator[str]:
        """Yields the schemas of the subject's versions before the latest one, newest first, at most VERSIONS_MAX."""

    def register(self, subject: str, schema: str) -> int:
        """Registers a schema under a subject, and returns the schema's id. If the subject has the schema already, returns the existing
        id.
        """


class HttpRegistry:
    """A client of a registry with Confluent's API (implements `SchemaRegistry`). `context` returns the TLS context. `schema_type` is the
    type of all schemas that this client looks up and registers. The password and the certificates are read for each request.
    """

    def __init__(
        self, config: RegistryConfig, context: Callable[[], ssl.SSLContext], schema_type: str = AVRO_TYPE
    ) -> None:
        self._config, self._context, self._type = config, context, schema_type
        self.where = f"the schema registry at {config.url}"

    def known(self, subject: str, schema: str) -> int | None:
        code, answer = self._request("POST", _path(subject), self._body(schema))
        return None if code == NOT_FOUND else self._number(self._good(subject, code, answer))

    def latest(self, subject: str) -> str | None:
        return self._version(subject, "latest")

    def earlier(self, subject: str) -> Iterator[str]:
        code, answer = self._request("GET", f"{_path(subject)}/versions")
        numbers = [] if code == NOT_FOUND else self._good(subject, code, answer)
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise self._odd()
        versions = (self._version(subject, str(number)) for number in sorted(numbers)[-2 : -2 - VERSIONS_MAX : -1])
        return (schema for schema in versions if schema is not None)

    def register(self, subject: str, schema: str) -> int:
        code, answer = self._request("POST", f"{_path(subject)}/versions", self._body(schema))
        return self._number(self._good(subject, code, answer))

    def _version(self, subject: str, version: str) -> str | None:
        """Returns the schema of a version of a subject, or None if the subject does not have the version."""
        code, answer = self._request("GET", f"{_path(subject)}/versions/{version}")
        if code == NOT_FOUND:
            return None
        found = self._good(subject, code, answer)
        schema = found.get("schema") if isinstance(found, dict) else None
        if not isinstance(schema, str):
            raise self._odd()
        if (other := found.get("schemaType") or AVRO_TYPE) != self._type:
            raise PublishError(
                f"subject {subject} of {self.where} has schemas of type {other}, and the format of the broker "
                f"needs type {self._type}: send the table to another topic, or delete the subject if no "
                "message with its schemas remains"
            )
        return schema

    def _body(self, schema: str) -> bytes:
        return json.dumps({"schema": schema, "schemaType": self._type}).encode()

    def _number(self, answer: Any) -> int:
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
            raise self._odd()
        return number

    def _odd(self) -> PublishError:
        return PublishError(
            f"{self.where} answered without a schema or its id: set `registry.url` to a registry with Confluent's API"
        )

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Sends a request. Returns the status and the body of the answer. Follows no redirect, and uses no proxy."""
        headers, connection = self._headers(), self._connection()
        try:
            connection.connect()
            with _limited(connection.sock):
                path = urllib.parse.urlsplit(self._config.url).path.rstrip("/") + path
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise self._silent(said) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self._config.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=ANSWER_SECONDS_MAX, context=self._context())
        return http.client.HTTPConnection(host, parts.port, timeout=ANSWER_SECONDS_MAX)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE}
        if self._config.user:
            password = filled(self._config.password, "registry.password")
            basic = base64.b64encode(f"{self._config.user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {basic}"
        return headers

    def _good(self, subject: str, code: int, answer: bytes) -> Any:
        """Returns the parsed JSON of an answer. Raises PublishError if the registry has refused the request or has not sent JSON."""
        if code != OK:
            raise self._refused(subject, code, _said(answer))
        try:
            return json.loads(answer)
        except ValueError as error:
            raise self._silent(type(error).__name__) from None

    def _silent(self, said: str) -> PublishError:
        return PublishError(
            f"{self.where} does not answer, or gives an invalid answer ({said}): check that the registry runs and can "
            "be reached; Sluice sends no message until the registry answers"
        )

    def _refused(self, subject: str, code: int, said: str) -> PublishError:
        shown = f" ({said})" if said else ""
        if code in (401, 403):
            return PublishError(
                f"{self.where} refused the request ({code}): correct user and password of `registry`, or the user's rights"
            )
        if code == 409:
            return incompatible(self.where, subject, shown)
        if code == 422:
            return PublishError(
                f"{self.where} does not accept the schema of subject {subject}{shown}: check the rules of the subject"
            )
        return PublishError(
            f"{self.where} answered {code}{shown} for subject {subject}: check `registry.url` and the registry's log"
        )


def incompatible(where: str, subject: str, shown: str) -> PublishError:
    return PublishError(
        f"{where} refuses the new schema of subject {subject}, because it is incompatible with an earlier "
        f"version{shown}. Set the compatibility of the subject to NONE until the schema is registered (in "
        "Apicurio also the global compatibility), or send the table to another topic; if several tables "
        "share the topic, set `subjects: topic_record`"
    )


def _path(subject: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}"


@contextlib.contextmanager
def _limited(connected: socket.socket) -> Iterator[None]:
    """Ends the request in the `with` block if it takes longer than ANSWER_SECONDS_MAX. The socket's timeout is not enough, because it
    applies to each read: a registry that sends single bytes could delay the request for long.
    """

    def shut_down() -> None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_SECONDS_MAX, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _said(answer: bytes) -> str:
    """Returns the registry's error message in the body of an answer, or "" if the body has no message."""
    try:
        found = json.loads(answer)
    except ValueError:
        return ""
    return str(found.get("message", ""))[:SAID_CHARS] if isinstance(found, dict) else ""
