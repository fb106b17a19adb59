"""Defines the error of an object store. The error's message is one sentence without secrets. Callers convert it to an error of their own
package.
"""

import re

NO_BUCKET = "the bucket or container does not exist; create it, or correct the URL in conf/"
# Matches the errors of S3's and Azure's clients if a file is written to a bucket or container that does not exist.
MISSING = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|ContainerNotFound|specified (?:bucket|container) does not exist")


class StoreError(Exception):
    """Raised if a store does not answer, refuses a request, or cannot be opened by its URL."""


def explained(text: str) -> str:
    """Returns the text of a client's error. If the bucket or container is missing, the text begins with what to do."""
    return f"{NO_BUCKET}: {text}" if MISSING.search(text) and NO_BUCKET not in text else text
