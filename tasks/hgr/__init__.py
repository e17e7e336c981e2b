"""Hierarchical graph reasoning (HGR): the model, role graphs of captions, and the parsers that make them."""
