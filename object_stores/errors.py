"""Defines the error of an object store: one sentence without secrets. Callers convert it to an error of their own package."""


class StoreError(Exception):
    """A store does not answer, refuses a request, or has a wrong name."""
