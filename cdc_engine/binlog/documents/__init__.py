"""MySQL's binary JSON: documents as text, and differences applied to documents."""
