"""What an operator decides in Dagster's UI."""
