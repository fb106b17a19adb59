"""Reports the state of engines as metrics for Prometheus, and as alarms by email, webhook or log. Runs in the process of the engines."""
