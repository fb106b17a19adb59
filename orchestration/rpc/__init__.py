"""Connects ticks and runs to their engine over gRPC: one table of methods, one server, one connection.

`methods` is the table. `served_engine` and `server` are the engine's side, in `process` (`sluice engine`) or `run_endpoint` (the code
server). `remote_host` and `connection` are the caller's side: of ticks, and by `run_caller` of runs.
"""
