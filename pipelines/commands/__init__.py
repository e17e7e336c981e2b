"""The verbs of the command line: arguments, one call, and printed output."""
