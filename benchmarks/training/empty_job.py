"""`python -m benchmarks.training.empty_job FOLDER`: a Ray Train job in which nothing is trained."""

from __future__ import annotations

import sys

from polypool.infra.process.memory import collect_rarely
from polypool.infra.ray.session import ray_session


def work() -> None:
    """Do what any worker has to."""
    import torch  # noqa: F401


def main() -> None:
    """Run the job in a session as a run has it, and keep what Ray Train writes in a folder."""
    collect_rarely()
    with ray_session() as session:
        from ray.train import LoggingConfig, RunConfig, ScalingConfig

        from polypool.infra.ray.trainer import RunTrainer

        RunTrainer(
            work,
            session=session,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name="empty", storage_path=sys.argv[1], logging_config=LoggingConfig(log_level="WARNING")
            ),
        ).fit()


if __name__ == "__main__":
    main()
