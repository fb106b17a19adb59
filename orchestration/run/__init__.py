"""What a run does: one batch, merged by Spark."""
