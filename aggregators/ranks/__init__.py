"""Per-channel sorting and weighted sums over the ranks: max, k-max, GPO, FSPool, FSW, PSWE, ADPOOL."""
