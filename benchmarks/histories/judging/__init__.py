"""Whether a history that ended kept the promise, and as short a one that did not."""
