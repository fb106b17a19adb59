"""Runs Azurite, an Azure Blob Storage for tests from npm. Used by the tests."""
