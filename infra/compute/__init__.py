"""What computing needs on any device and any number of workers: devices, distribution, random streams, a GRU."""
