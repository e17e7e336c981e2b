"""Terms of the loss on embeddings."""
