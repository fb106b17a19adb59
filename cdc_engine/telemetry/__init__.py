"""Sends traces of batches to an OpenTelemetry collector, if OpenTelemetry's environment variables name one (docs/guides/monitor.md)."""
