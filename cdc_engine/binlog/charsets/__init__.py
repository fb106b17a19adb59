"""MySQL's character sets and the codecs that read them as the server does."""
