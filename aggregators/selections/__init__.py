"""Selection or merging of elements: by learned maps, by score, or by similarity to a text."""
