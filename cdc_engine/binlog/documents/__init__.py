"""MySQL's binary JSON: prints documents as text, and applies differences to documents."""
