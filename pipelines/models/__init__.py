"""The trained model: load, embed, score, answer, search, evaluate, export."""
