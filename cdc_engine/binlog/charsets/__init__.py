"""MySQL's character sets, and codecs that decode them as the server does."""
