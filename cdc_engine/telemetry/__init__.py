"""Sends traces of batches to an OpenTelemetry collector, if OpenTelemetry's environment variables name a collector
(docs/guides/monitor.md).
"""
