"""Connects ticks and runs to their engine over gRPC, with one table of methods, one server and one connection class.

`methods` is the table. The engine's side is `served_engine` and `server`, in the process of `process` (`sluice engine`) or `run_endpoint`
(the code server). The caller's side is `connection` and `remote_host`; runs call through `run_caller`.
"""
