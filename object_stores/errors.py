"""What goes wrong with a store, as one sentence without secrets. Whoever asked says it in the words of its own room."""


class StoreError(Exception):
    """A store does not answer, refuses, or is not named rightly."""
