"""The error of an object store, as one sentence without secrets. Callers convert it to an error of their own package."""


class StoreError(Exception):
    """Raised when a store does not answer, refuses, or has a wrong name."""
