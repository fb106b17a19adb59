"""What others install is called around each batch of a destination: here is what such a package imports (docs/handlers.md)."""

from cdc_engine.handlers.contract import BatchHandler, HandledBatch

__all__ = ["BatchHandler", "HandledBatch"]
