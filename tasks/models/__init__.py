"""Models of retrieval: two branches, pairs, HGR; and the embeddings and scores of whole splits."""
