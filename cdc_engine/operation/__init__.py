"""Reports engines to the outside, in addition to `status`: metrics for Prometheus, alarms for people. Started by the engine's host."""
