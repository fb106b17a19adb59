"""Defines the error of an object store. Its message is one sentence without secrets. Callers convert it to an error of
their own package.
"""


class StoreError(Exception):
    """Raised if a store does not answer, refuses a request, or cannot be opened by its URL."""
