"""From a corpus to batches: pairs, captions, pixels, questions, role graphs."""
