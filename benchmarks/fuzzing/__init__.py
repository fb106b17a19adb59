"""Fuzzing with damaged binlogs: a process that reads them may only fail with a named error."""
