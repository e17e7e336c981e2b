"""Aggregators that sort each channel and weigh ranks: max, k-max, GPO, FSPool, FSW, ADPOOL."""
