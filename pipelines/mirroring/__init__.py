"""Where else the runs that MLflow has can be looked at."""
