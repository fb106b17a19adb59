"""Downloads an archive with conf/ over https, or reads it from a file."""

from __future__ import annotations

import base64
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from typing import Any

from sluice.cdc_engine.config.remote.settings import RemoteConfig, url_problem
from sluice.cdc_engine.keeping.remote_conf.fetched import ARCHIVE_BYTES_MAX, Fetched, RemoteAwayError

ANSWER_SECONDS_MAX = 20.0
CONTENT_SECONDS_MAX = 120.0
REDIRECTS = range(300, 400)
UNCHANGED = 304
REVISION_DIGITS = 16


def fetch_archive(remote: RemoteConfig, url: str, token: str, etag: str) -> Fetched | None:
    """Downloads the archive with conf/. Returns None if the server answers that the archive still has the ETag `etag`. Raises
    RemoteAwayError if the archive cannot be downloaded.
    """
    request = urllib.request.Request(url)  # noqa: S310  the schemes are checked
    if token:  # Sends the token in an "unredirected" header, which urllib does not send to the target of a redirect.
        basic = base64.b64encode(f"{remote.user}:{token}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {basic}" if remote.user else f"Bearer {token}")
    if etag:
        request.add_header("If-None-Match", etag)
    try:
        with urllib.request.build_opener(_Redirects()).open(request, timeout=ANSWER_SECONDS_MAX) as answer:
            content, tag = _content(remote, answer), answer.headers.get("ETag") or ""
            length = answer.headers.get("Content-Length") or ""
    except urllib.error.HTTPError as error:
        if error.code == UNCHANGED:
            return None
        if error.code in REDIRECTS:
            raise RemoteAwayError(
                f"{remote.shown} answered {error.code}, and the redirect is not followed, because it leads to a file, a URL without TLS, "
                "or in a circle: set url in conf/remote.yaml to the https URL of the archive itself"
            ) from None
        raise RemoteAwayError(
            f"{remote.shown} answered {error.code}: correct url and token in conf/remote.yaml, or find the cause on the server"
        ) from None
    # Shows only the reason, because the text of the error may contain the URL, which may contain a secret.
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", error)
        said = why.strerror if isinstance(why, OSError) and why.strerror else type(why).__name__
        raise RemoteAwayError(f"{remote.shown} cannot be read: {said}") from None
    if len(content) > ARCHIVE_BYTES_MAX:
        raise RemoteAwayError(
            f"{remote.shown} is larger than {ARCHIVE_BYTES_MAX >> 20} MiB: remove files that do not belong to conf/ from the archive"
        )
    # Refuses content that does not have the length that the server announced: the connection ended too early, or the file is being written.
    if length.isdecimal() and len(content) != int(length):
        raise RemoteAwayError(
            f"{remote.shown} cannot be read: the download ended after {len(content)} of {length} bytes; Sluice tries again"
        )
    return Fetched(hashlib.sha256(content).hexdigest()[:REVISION_DIGITS], content, tag)


def _content(remote: RemoteConfig, answer: Any) -> bytes:
    """Reads the body of an answer. Stops one byte after ARCHIVE_BYTES_MAX, so that the caller notices that the archive is too large.

    Raises RemoteAwayError if the body is not complete after CONTENT_SECONDS_MAX. The connection's timeout is not sufficient, because it
    applies to each read: a server that sends single bytes could block all pulls of this host.
    """
    until, found = time.monotonic() + CONTENT_SECONDS_MAX, bytearray()
    while len(found) <= ARCHIVE_BYTES_MAX and (part := answer.read1(ARCHIVE_BYTES_MAX + 1 - len(found))):
        found += part
        if time.monotonic() > until:
            raise RemoteAwayError(
                f"{remote.shown} did not send all of its content in {CONTENT_SECONDS_MAX:g} s: check the network and the server"
            )
    return bytes(found)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if the new URL uses TLS or leads to this host. Never follows a redirect to a file."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917  as in urllib
        if url_problem("archive", newurl, secret=True) or newurl.startswith("file:"):
            raise urllib.error.HTTPError(
                req.full_url, code, "a redirect to a file, or to a URL without TLS", headers, fp
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)
