"""Runs Azurite, Microsoft's emulator of Azure Blob Storage from npm, for the tests."""
