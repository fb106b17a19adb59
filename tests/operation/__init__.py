"""Tests the endpoint for Prometheus, and the alarms that are sent by webhook or mail."""
