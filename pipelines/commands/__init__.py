"""The verbs of the command line: arguments, one call, what is printed."""
