"""Tests of the endpoint for Prometheus and of alarms."""
