"""The Spark Connect server that Sluice starts, and its warm-up."""
