"""The processes of a stack: begun in their order, kept alive, ended."""
