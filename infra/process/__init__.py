"""What a process has around its work: its environment, its terminal, and how it ends when it is asked to."""
