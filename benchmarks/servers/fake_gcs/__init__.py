"""Runs fake-gcs-server for the tests. This emulator of Google Cloud Storage is a Go module."""
