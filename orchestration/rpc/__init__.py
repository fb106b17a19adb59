"""Connects ticks and runs to their engine over gRPC: one server, one connection, one form of messages.

`server` and `connection` are the two sides. `remote_host` and `engine_methods` are for ticks whose engine is in another process;
`run_caller` and `run_endpoint` are for runs.
"""
