r"""Implements a client for Canal's protocol. The client works with Sluice's server and with Canal's server, and returns typed changes or
Arrow tables.

    with CanalClient("shop", settings=ClientSettings(table_filter=r"shop\..*")) as client:
        for batch in client.batches():
            tables = batch.to_arrow()

The client needs only `protobuf`, `pyarrow` for Arrow tables, and `kazoo` for a cluster. docs/canal.md has examples.
"""

from sluice.canal_client.batch import (
    Batch,
    Change,
    EntryPosition,
    RowChange,
    Statement,
    TransactionBegin,
    TransactionEnd,
)
from sluice.canal_client.client import CanalClient, ClientSettings
from sluice.canal_client.errors import (
    BatchGoneError,
    CanalAuthenticationError,
    CanalConnectionError,
    CanalError,
    CanalProtocolError,
    CanalServerError,
)

__all__ = [
    "Batch",
    "BatchGoneError",
    "CanalAuthenticationError",
    "CanalClient",
    "CanalConnectionError",
    "CanalError",
    "CanalProtocolError",
    "CanalServerError",
    "Change",
    "ClientSettings",
    "EntryPosition",
    "RowChange",
    "Statement",
    "TransactionBegin",
    "TransactionEnd",
]
