"""Sweeps: trials, recorded runs that match them, and the training of the rest."""
