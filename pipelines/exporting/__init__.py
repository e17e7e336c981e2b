"""An exported model as MLflow keeps, registers and serves it."""
