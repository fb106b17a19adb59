"""Tests the readers of binlogs with damaged bytes: a process that reads them may only fail with a named error."""
