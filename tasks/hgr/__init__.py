"""Hierarchical graph reasoning (HGR): the model, role graphs of captions, and their parser."""
