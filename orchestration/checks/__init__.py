"""The asset checks: tables and engines that have stopped, and whether the lake equals the source; with what they observe."""
