"""Reports the state of engines beyond `sluice status`: metrics for Prometheus, alarms for people. Started by the engine's process."""
