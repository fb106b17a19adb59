"""Runs engines in their own process: the server in that process, the client in the code server, and the messages between them."""
