"""The cluster of a test run, in a process of its own that the package `ottla` starts."""
