"""Tests the readers of binlogs with damaged bytes. A process that reads them may fail only with a named error."""
