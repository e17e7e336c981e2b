"""Multiple instance learning, where few elements determine the label of a set: ABMIL, DSMIL, ACMIL, TransMIL."""
