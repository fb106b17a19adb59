"""The demo: a private MySQL with a shop in it, seeded traffic, the whole stack, a live view, and the proof that both sides are equal."""
