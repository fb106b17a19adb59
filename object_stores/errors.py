"""Defines the error of an object store. The error's message is one sentence without secrets. Other packages convert StoreError to errors of
their own.
"""

import re

NO_BUCKET = "the bucket or container does not exist; create it, or correct the URL in conf/"
# Matches the errors that the clients of S3 and Azure raise when they write a file to a bucket or container that does not exist.
MISSING = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound|specified (?:bucket|container) does not exist")


class StoreError(Exception):
    """Raised if a store does not answer, refuses a request, or cannot be opened by its URL."""


def explained(text: str) -> str:
    """Returns `text`, the error of a store's client. If the text says that the bucket or container does not exist, the result begins with
    NO_BUCKET, which says what to do.
    """
    return f"{NO_BUCKET}: {text}" if MISSING.search(text) and NO_BUCKET not in text else text
