"""Feature stores on the Hugging Face hub: pushed to a repository and pulled from one, digests compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder, sha256
from polypool.infra.lease.on_disk import NAME as LEASE
from polypool.infra.lease.on_disk import lease_folder
from polypool.infra.process.progress import Progress
from polypool.infra.storage.hub import CARD, Publication, Repository
from polypool.infra.storage.places import local
from polypool.infra.store.manifest import COLUMNS, NAME, Manifest

UNSTATED = Publication()
_STALE = ("*.arrow", f"{COLUMNS}/*")
_PULLED = ".pulled"
"""Folder of what has come of a store, until all of it has."""


def push_store(store: str | Path, to: str, *, publication: Publication = UNSTATED) -> str:
    """Push a store as one commit; return the commit. A README of the store is its card, else one is written.

    Args:
        store: folder of a complete store; it is read once, and compared with its digests.
        to: repository of a data set, or a folder of one: `hf://datasets/user/name/regions`.
        publication: licence, and who may see a new repository.

    Raises:
        InputError: no such store, one with a damaged file, or the hub refuses or does not answer.
    """
    folder, repository = local(store, what="a store to push"), Repository.of(to, kind="dataset")
    manifests = _manifests(folder)
    files: dict[str, Path | bytes] = {name: folder / name for name in _shards(manifests)}
    _refuse_changed(folder, manifests, then="write the store again; nothing was pushed")
    files |= {f"{prefix}{NAME}": folder / f"{prefix}{NAME}" for prefix in manifests}
    own = folder / CARD
    if own.exists() and publication.license:
        raise InputError(f"{own}: has the licence, as it becomes the card; write it there, without --license")
    files[CARD] = own if own.exists() else _card(repository, manifests[""], publication.license).encode()
    return repository.push(
        files,
        marker=NAME,
        stale=_STALE,
        private=publication.private,
        about=f"Store of {manifests[''].sets:,} sets",
    )


def pull_store(source: str, out: str | Path) -> Manifest:
    """Pull a store into a folder, where it appears whole or not at all; an interrupted pull is continued.

    Args:
        source: URL that a store was pushed to, with a revision or without: `hf://datasets/user/name@revision`.
        out: folder, which must not exist yet, or be empty; where it has this store already, nothing is fetched.

    Raises:
        InputError: there is no store, the folder has something else, a file is not what was pushed, or the hub refuses
            or does not answer.
    """
    to, repository = local(out, what="the folder that a store is pulled into"), Repository.of(source).pinned()
    about = repository.fetch([NAME])
    columns = [f"{COLUMNS}/{name}/{NAME}" for name in _read(about, repository).source.get(COLUMNS, {})]
    if columns:
        about = repository.fetch([NAME, *columns])
    try:
        manifests = _manifests(about)
    except InputError as error:
        raise InputError(str(error).replace(str(about), str(repository))) from error
    manifest = manifests[""]
    with lease_folder(to):
        if (to / NAME).exists():
            if Manifest.read(to) != manifest:
                raise InputError(f"{to}: has another store; choose another folder with --out")
            return manifest
        others = {path.name for path in to.iterdir()} - {LEASE, _PULLED}
        if others and not (to / _PULLED).exists():
            raise InputError(
                f"{to}: has other files, such as {min(others)}; choose another folder with --out"
            )
        aside = make_folder(to / _PULLED)
        came = repository.fetch([*_shards(manifests)], into=aside)
        _refuse_changed(
            came, manifests, then=f"run the command again; if it stays so, push {source} again", drop=True
        )
        for name in _shards(manifests):
            os.replace(came / name, make_folder((to / name).parent) / Path(name).name)
        for prefix, each in reversed(manifests.items()):  # the store's own manifest comes last
            each.write(to / prefix)
        shutil.rmtree(aside)
    return manifest


def _read(folder: Path, repository: Repository) -> Manifest:
    try:
        return Manifest.read(folder)
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(repository))) from error


def _manifests(folder: Path) -> dict[str, Manifest]:
    """Return the manifests of a store and of its columns, by the prefix of their files' names."""
    manifest = Manifest.read(folder)
    prefixes = [f"{COLUMNS}/{name}/" for name in manifest.source.get(COLUMNS, {})]
    return {"": manifest} | {prefix: Manifest.read(folder / prefix) for prefix in prefixes}


def _shards(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    return (f"{prefix}{shard.file}" for prefix, each in manifests.items() for shard in each.shards)


def _refuse_changed(
    folder: Path, manifests: Mapping[str, Manifest], *, then: str, drop: bool = False
) -> None:
    """Compare all files of a store with their digests; `drop` deletes damaged ones, so that they are fetched anew."""
    digests = {f"{prefix}{of.file}": of.sha256 for prefix, each in manifests.items() for of in each.shards}
    for name, digest in Progress(digests.items(), desc="verify", unit="shard"):
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            if drop:
                path.unlink(missing_ok=True)
            raise InputError(
                f"{path}: is missing, or its bytes are not those that were written (SHA-256 differs); {then}"
            )


def _card(repository: Repository, manifest: Manifest, license: str) -> str:
    from huggingface_hub import DatasetCardData

    extractor = manifest.source.get("extractor", {})
    made = extractor.get("backbone") or manifest.source.get("reader") or "features of its author's own"
    tags = ["polypool", "features", *([extractor["backbone"]] if extractor.get("backbone") else [])]
    data = DatasetCardData(
        license=license or None, tags=tags, viewer=False
    )  # no table that a viewer could show
    stated = (
        f"`{license}`. The terms of the pictures or videos and of the backbone's weights hold beside it."
        if license
        else "Not stated: whoever pushed the store named none. The terms of the pictures or videos and of the "
        "backbone's weights may restrict its use."
    )
    return f"""---
{data.to_yaml()}
---

# A feature store of polypool

{manifest.sets:,} sets of {manifest.vectors:,} vectors in all, each of {manifest.dim} numbers ({manifest.dtype}),
made by `{made}`. `{NAME}` describes it all; digest of ids and features: `{manifest.digest}`.

```sh
polypool data pull {repository} --out data/features
polypool train image_text --corpus data/mine --features data/features
```

`--features {repository}` reads it from here, without a copy of the whole.

## Licence

{stated}
"""
