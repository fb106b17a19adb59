"""Provides everything that the machine needs before Sluice runs: Java, jars, database servers, compiled kernels, the Spark server."""
