"""Reports the state of engines in two further ways besides `sluice status`: metrics for Prometheus, and alarms for people. The engine's
process starts both.
"""
