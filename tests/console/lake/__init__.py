"""Questions to the lake."""
