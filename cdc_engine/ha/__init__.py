"""Allows one engine and one run per destination, across processes and hosts, by locks."""
