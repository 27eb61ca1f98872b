"""The commands of the command line, one in a file: each has `run(options) -> exit code`."""
