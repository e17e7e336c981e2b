"""From the vectors of an image and a question to one."""
