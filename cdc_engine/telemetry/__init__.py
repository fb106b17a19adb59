"""Sends traces of batches to OpenTelemetry, if conf/ or the environment names a collector (docs/guides/monitor.md)."""
