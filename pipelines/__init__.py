"""What is run, one verb a file: `python -m pipelines.<verb>`."""

import sys

from infra.process.stopping import end_at_once, listen

if sys.argv[0] == "-m":  # Python looks for the verb, whose imports take a while
    listen(end_at_once)
