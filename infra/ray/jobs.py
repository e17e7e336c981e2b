"""Ray jobs: submitted to a job server, followed, and stopped with the caller."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from polypool.infra.errors import InputError
from polypool.infra.ray.internals import most_package_bytes, visit_package

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """A server that takes Ray jobs.

    Attributes:
        address: of a head's dashboard (`http://host:8265`), or of its cluster (`ray://host:10001`, `host:6379`).
        token: of its clients; where empty, that of Ray's own settings (RAY_AUTH_TOKEN).
        cluster: the address at which more nodes join; empty where unknown.
    """

    address: str
    token: str = field(default="", repr=False)
    cluster: str = ""

    def client(self) -> JobSubmissionClient:
        """Return a connected client.

        Raises:
            ConnectionError: the server does not answer.
        """
        from ray.job_submission import JobSubmissionClient

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.ERROR)  # it logs each file that is not sent, and each connection's end
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        return JobSubmissionClient(self.address, headers=headers)

    async def run(
        self, words: Sequence[str], *, folder: Path, env: Mapping[str, str], show: Callable[[str], None]
    ) -> None:
        """Run a command as a job and wait for its end; cancelling the task stops the job.

        Args:
            words: of the command; `python` is the first on the head's PATH.
            folder: the job's working directory, without the files that `.rayignore` names.
            env: environment variables of the job, added to the head's.
            show: called with each line of the job's output.

        Raises:
            InputError: the folder is too large, the server does not answer, or the job did not succeed.
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
        assert details is not None
        if details.status != JobStatus.SUCCEEDED:
            why = (details.message or "").partition(", last available logs")[0]
            raise InputError(
                f"the Ray job `{command}` ended as {details.status} ({why}); its output above says more"
            )


_SHOWN = 5


def refuse_large(folder: Path) -> None:
    """Refuse a working directory that the job server would reject after the upload.

    Raises:
        InputError: it is too large; the message names its largest parts.
    """
    sizes: Counter[str] = Counter()

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder).parts[0]] += path.stat().st_size

    visit_package(folder, add)
    size, most = sum(sizes.values()), most_package_bytes()
    if size < most:
        return
    largest = "".join(f"\n  {bytes / 2**20:8,.1f} MiB  {name}" for name, bytes in sizes.most_common(_SHOWN))
    raise InputError(
        f"{folder}: as the working directory of a Ray job it has {size / 2**20:,.0f} MiB, and a job server takes "
        f"{most / 2**20:,.0f} MiB. Name what the job does not need in {folder / '.rayignore'}, a pattern a line, as in "
        f".gitignore; what is largest:{largest}"
    )
