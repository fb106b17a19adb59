"""Connects ticks and runs to their engine over gRPC, with one table of methods, one server and one connection class.

`methods` is the table. `served_engine` and `server` are the engine's side. `process` (`sluice engine`) and `run_endpoint` (the code server)
start them. `connection` and `remote_host` are the caller's side. Runs call through `run_caller`.
"""
