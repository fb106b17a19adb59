"""Traces of batches for OpenTelemetry: off unless conf/ or the environment names a collector (docs/guides/monitor.md)."""
