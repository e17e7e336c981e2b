"""What a batch means and how it is scored: the contract of a task, and its adapters."""
