"""Aggregators that assign elements to learned centres, softly or by optimal transport, and sum up what each gets."""
