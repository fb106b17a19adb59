"""Calls handlers of other packages before and after each batch of a destination. Handlers import their protocol from here
(docs/handlers.md).
"""

from sluice.cdc_engine.handlers.contract import BatchHandler, HandledBatch

__all__ = ["BatchHandler", "HandledBatch"]
