"""The processes of a stack: started in order, kept alive, ended."""
