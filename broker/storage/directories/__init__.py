"""The directories of `log.dirs`: what is in them beside the logs, and which log is where."""
