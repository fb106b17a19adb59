"""Sends traces of batches to OpenTelemetry, if OpenTelemetry's environment variables name a collector (docs/guides/monitor.md)."""
