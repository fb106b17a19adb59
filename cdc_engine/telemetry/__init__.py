"""Traces batches for OpenTelemetry. It is off unless conf/ or the environment names a collector (docs/guides/monitor.md)."""
