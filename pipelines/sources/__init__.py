"""Where public data sets are to be had, and what of them is here."""
