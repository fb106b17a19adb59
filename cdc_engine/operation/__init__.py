"""What the outside sees of engines beside `status`: figures for Prometheus, alarms for people. Started by the engine's host."""
