"""Which negatives of a batch count: parts that objectives share."""
