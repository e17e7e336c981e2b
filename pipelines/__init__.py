"""What is run, one verb a file: `python -m pipelines.<verb>`."""
