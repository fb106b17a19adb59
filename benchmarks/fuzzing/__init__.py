"""Tests the readers of binlogs with damaged bytes. A process that reads damaged bytes may fail only with a named error."""
