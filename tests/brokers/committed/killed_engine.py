"""Runs an engine whose process is killed between the broker's commit and the ack. `python -m tests.brokers.committed.killed_engine CONF
COUNT` acks COUNT batches of its broker, and then sends one more that it does not ack.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.server.consumer import ConsumerService


def main(conf: Path, count: int) -> None:
    left, ack = [count], ConsumerService.ack

    def ack_or_end(self: ConsumerService[Any, Any], batch_id: int) -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        ack(self, batch_id)

    ConsumerService.ack = ack_or_end  # type: ignore[method-assign]
    Engine(load_config(conf), "shop").start()
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
