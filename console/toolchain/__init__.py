"""Provides everything that the machine needs before Sluice runs: Java, jars, database servers, the Spark server, code checks."""

from console.toolchain.database.server import DatabaseServer
from console.toolchain.errors import SetupError
from console.toolchain.setup import ALL_SERVERS, DEMO_SERVERS, Toolchain, set_up

__all__ = ["ALL_SERVERS", "DEMO_SERVERS", "DatabaseServer", "SetupError", "Toolchain", "set_up"]
