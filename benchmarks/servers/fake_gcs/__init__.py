"""Runs fake-gcs-server, an emulator of Google Cloud Storage that is a Go module, for the tests."""
