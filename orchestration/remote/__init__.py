"""Engines in a process of their own: who answers there, who calls from the code server, and what goes over the wire."""
