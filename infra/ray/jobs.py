"""Ray jobs: submitted to a job server, their output followed, and stopped with whoever waits for them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import InputError
from infra.ray.package import refuse_large

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """Where Ray jobs are submitted.

    Attributes:
        address: of a head's dashboard (`http://host:8265`), or of its cluster (`ray://host:10001`, `host:6379`).
        token: that it asks its clients for; where empty, the settings that Ray itself reads (RAY_AUTH_TOKEN) hold.
        cluster: where more nodes join it; empty where that is not known.
    """

    address: str
    token: str = field(default="", repr=False)
    cluster: str = ""

    def client(self) -> JobSubmissionClient:
        """Return a client that the job server has answered.

        Raises:
            ConnectionError: nobody answers.
        """
        from ray.job_submission import JobSubmissionClient

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(
                logging.ERROR
            )  # it tells of each file that is not sent, and of each connection's end
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        return JobSubmissionClient(self.address, headers=headers)

    async def run(
        self, words: Sequence[str], *, folder: Path, env: Mapping[str, str], show: Callable[[str], None]
    ) -> None:
        """Run a command as a job and wait for its end. A task that is cancelled meanwhile stops its job.

        Args:
            words: of the command; its `python` is the one that is first on the head's PATH.
            folder: whose files, but for those that `.rayignore` names, are the job's working directory.
            env: the job's environment variables, beside those of the head.
            show: takes each line of the job's output, without its end, as it comes.

        Raises:
            InputError: the folder is larger than a job server takes, none answers, or the job did not succeed.
        """
        from ray.job_submission import JobStatus

        refuse_large(folder)
        command = shlex.join(words)
        try:
            client = self.client()
        except ConnectionError as error:
            raise InputError(f"no job server answers at {self.address}; start the cluster first") from error
        job = client.submit_job(
            entrypoint=command, runtime_env={"working_dir": str(folder), "env_vars": dict(env)}
        )
        rest = ""
        try:
            async for text in client.tail_job_logs(job):
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    show(line)
        except BaseException:
            client.stop_job(job)
            raise
        if rest:
            show(rest)
        details = client.get_job_info(job)
        if details.status != JobStatus.SUCCEEDED:
            why = (details.message or "").partition(", last available logs")[0]
            raise InputError(
                f"the Ray job `{command}` ended as {details.status} ({why}); its output above says more"
            )
