"""Multiple instance learning, where few elements of a set tell what it is: ABMIL, DSMIL, ACMIL, TransMIL."""
