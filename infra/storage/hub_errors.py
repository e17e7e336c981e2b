"""Errors of the Hugging Face hub's client, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from polypool.infra.errors import AwayError, InputError
from polypool.infra.files import disk_fault

if TYPE_CHECKING:
    from polypool.infra.storage.hub import Repository

URL_OF = {"model": "hf://user/name", "dataset": "hf://datasets/user/name"}
"""What the URL of a repository looks like, by its kind."""


@contextmanager
def explained(repository: Repository, how: str) -> Iterator[None]:
    """Raise an InputError for what the hub or the connection to it refuses.

    Args:
        repository: the request is about.
        how: what cannot be done, such as `read`.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(f"{repository}: is no name of a repository: {_line(error)}") from error
    except errors.RevisionNotFoundError as error:
        what = f"{repository.revision!r}; expected a branch, a tag or a commit"
        raise InputError(f"{replace(repository, revision='')}: has no revision {what}") from error
    except errors.GatedRepoError as error:
        page = f"datasets/{repository.id}" if repository.kind == "dataset" else repository.id
        raise InputError(
            f"{repository}: its authors want their terms accepted first, on {constants.ENDPOINT}/{page}; then "
            "`hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{repository}: no such {repository.kind} repository, or a private one that this machine may not see; "
            f"check the name ({URL_OF[repository.kind]}), and for a private one `hf auth login`, or HF_TOKEN"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _away(repository, how, error.__cause__ or error) from error
    except Exception as error:  # clients of HTTP and of xet have their own
        if why := disk_fault(error, Path(constants.HF_HUB_CACHE)):
            raise InputError(f"{repository}: {why}") from error
        response = error.response if isinstance(error, HfHubHTTPError) else None
        if response is not None and response.status_code in (401, 403):
            raise InputError(
                f"{repository}: may not be {how} with the token of this machine: {_line(error)}; make one that may, "
                "and give it to `hf auth login` or as HF_TOKEN"
            ) from error
        refused = response is not None and response.status_code < 500 and response.status_code != 429
        if refused or isinstance(error, ValueError):
            raise InputError(f"{repository}: cannot be {how}: {_line(error)}") from error
        raise _away(repository, how, error) from error


def _away(repository: Repository, how: str, error: BaseException) -> AwayError:
    from huggingface_hub import constants

    offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
    return AwayError(
        f"{repository}: cannot be {how}, as {constants.ENDPOINT} does not answer{offline}: {_line(error)}; check the "
        "connection (and HF_ENDPOINT, if it is set), and run the command again, which goes on where it stopped"
    )


def _line(error: BaseException) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
