"""Computation on any device and any number of workers: devices, collectives, random streams, a GRU."""
