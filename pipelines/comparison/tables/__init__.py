"""The tables of a comparison, and how they look in a terminal, in Markdown and in LaTeX."""
