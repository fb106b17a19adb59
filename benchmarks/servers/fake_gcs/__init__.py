"""Runs fake-gcs-server for the tests. It is an emulator of Google Cloud Storage, written as a Go module."""
