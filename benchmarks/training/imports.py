"""`python -m benchmarks.training.imports`: the imports without which no run is trained and recorded."""

import mlflow  # noqa: F401
import torch  # noqa: F401
