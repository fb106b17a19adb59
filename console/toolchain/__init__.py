"""Provides what the machine needs before Sluice can run: Java, jars, database servers, compiled kernels, and the Spark server."""
