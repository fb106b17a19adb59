"""Serves Canal's protocol over TCP: frames, packets, authentication and the server."""
