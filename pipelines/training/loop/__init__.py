"""The training loop of one run on one worker."""
