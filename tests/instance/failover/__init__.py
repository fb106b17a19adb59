"""Several sources of a destination: who takes over, and that no change is lost or comes twice."""
