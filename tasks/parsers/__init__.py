"""From a caption to its graph of verbs and arguments."""
