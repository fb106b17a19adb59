"""Reports the state of engines besides `sluice status`: metrics for Prometheus, and alarms for people. The engine's process starts it."""
