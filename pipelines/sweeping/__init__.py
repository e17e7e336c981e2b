"""What `sweep` is made of: its trials, the runs that stand for them already, and training the rest."""
