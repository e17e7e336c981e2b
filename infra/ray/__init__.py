"""Ray: sessions, a private head, Tune, and progress shown where the driver's output goes."""
