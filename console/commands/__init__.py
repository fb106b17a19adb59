"""The subcommands of `sluice` with their options, a file a subject; `main` puts them together. They load what they call when called."""
