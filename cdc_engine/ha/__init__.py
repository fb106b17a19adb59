"""Provides the locks that allow one engine and one run per destination, across processes and hosts."""
