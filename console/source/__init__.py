"""The commands `sluice source`, which list the sources of a destination and switch between them."""
