"""`polypool data [NAME ...]`: List the public data sets of the recipes: sources, terms, and what is on this machine.

Files are looked for by their names below `--folder`, as their authors' archives leave them. Nothing is downloaded: most
authors ask for consent, and some for a form.

`polypool data push STORE hf://datasets/user/name` publishes a feature store on the Hugging Face hub, and `polypool data
pull hf://datasets/user/name --out STORE` fetches one, so that nobody has to extract the same features again.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from polypool.infra.errors import unknown
from polypool.infra.files import existing_folder
from polypool.infra.paths import home
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.infra.storage.hub import Publication

UNSTATED = Publication()


def show(
    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="(default: a line for each)")
    ] = (),
    *,
    folder: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: the project's home)")] = None,
) -> None:
    """Show data sets.

    Args:
        names: data sets, of which files and commands are shown.
        folder: where the files are looked for, and below.
    """
    from polypool.pipelines.data.public_sets import SETS, found_below, report, summary

    for name in names:
        if name not in SETS:
            raise unknown("public data set", name, SETS)
    folder = existing_folder(folder or home(), what="the folder of the data sets' files")
    found = found_below(folder, {file.name for each in SETS.values() for file in each.files})
    for name in names:
        print(textwrap.dedent(report(name, SETS[name], found)))
    if not names:
        width = max(map(len, SETS))
        for name, each in SETS.items():
            print(f"{name:<{width}}  {summary(each, found)}")
        print(f"\nlooked for below {folder}; polypool data NAME shows files, addresses and commands")


def push(
    store: tyro.conf.Positional[Path],
    url: tyro.conf.Positional[str],
    *,
    publication: tyro.conf.OmitArgPrefixes[Publication] = UNSTATED,
) -> None:
    """Push a feature store to the Hugging Face hub, as one commit; what the hub has already is not sent again.

    Args:
        store: folder of the store.
        url: repository, which is made where necessary: hf://datasets/user/name, or a folder of one.
        publication: licence, and who may see the repository.
    """
    from polypool.pipelines.data.published_stores import push_store

    commit = push_store(store, url, publication=publication)
    print(f"pushed to {url} as commit {commit}")
    print_next(("fetch it on another machine", ("data", "pull", url, "--out", "FOLDER")))


def pull(url: tyro.conf.Positional[str], *, out: Path) -> None:
    """Pull a feature store that was pushed, and compare its digests; an interrupted pull is continued.

    Args:
        url: hf://datasets/user/name, with a revision or without: hf://datasets/user/name@revision.
        out: folder to make.
    """
    from polypool.pipelines.data.published_stores import pull_store

    manifest = pull_store(url, out)
    print(f"{out}: {manifest.sets:,} sets of {manifest.dim} numbers, digest {manifest.digest}")
    train = ("train", "image_text", "--corpus", "CORPUS", "--features", out)
    print_next(("train on it", train))


@command
def main() -> None:
    travels: dict[str, Callable[..., None]] = {"push": push, "pull": pull}
    if sys.argv[1:2] and sys.argv[1] in travels:
        tyro.extras.subcommand_cli_from_dict(travels, prog="polypool data")
    else:
        tyro.cli(show, prog="polypool data", description=__doc__)
