"""Checks a client's proof that it knows the password: SHA1(seed + SHA1(SHA1(password))) XOR SHA1(password), as hex text. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re

HASH = re.compile(r"[0-9a-fA-F]{40}")


def is_hash(text: str) -> bool:
    """Returns whether the text has the form of hex(SHA1(SHA1(password)))."""
    return HASH.fullmatch(text) is not None


def knows_password(token: bytes, seed: bytes, password_hash: str) -> bool:
    """Returns whether a client's token proves that the client knows the password. Returns True if `password_hash` is empty, because no
    password is needed.
    """
    if not password_hash:
        return True
    stored = bytes.fromhex(password_hash)
    try:
        given = bytes.fromhex(token.decode("ascii"))
    except ValueError:
        return False
    if len(given) != len(stored):
        return False
    mask = _sha1(seed + stored)
    once = bytes(left ^ right for left, right in zip(given, mask, strict=True))
    return hmac.compare_digest(_sha1(once), stored)


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()  # The protocol requires SHA-1.
