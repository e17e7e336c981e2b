"""`python -m pipelines.export RUN_ID --out DIR`: the best model of a run as one folder that loads in five lines."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from infra.errors import InputError, command
from infra.files import make_folder
from infra.paths import home
from infra.tracking import Tracker, tracking_uri
from pipelines.kept_model import kept_model
from pipelines.models import ASSETS, RUN, WEIGHTS, Exported, load_exported

README = "README.md"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to export, and where to."""

    run_id: tyro.conf.Positional[str]
    """A run that was trained."""
    out: Path
    """Folder to make; it must not exist yet, or be empty."""


def export(run_id: str, out: Path) -> Exported:
    """Write the best model of a run to the folder `out`, and return it loaded.

    The folder appears whole or not at all.

    Raises:
        InputError: no such run, it kept no model, or the folder is in use.
    """
    tracker = Tracker.attach(tracking_uri(home()), run_id, running=False)
    kept = kept_model(tracker)
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; choose another folder with --out")
    exported = load_exported(kept)
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made:
        part = Path(made) / "part"
        part.mkdir()
        for file in (WEIGHTS, RUN, ASSETS):
            shutil.copyfile(kept / file, part / file)
        (part / README).write_text(_readme(tracker, exported, out.name))
        os.replace(part, out)
    return exported


def example(exported: Exported, folder: str) -> str:
    """Return the five lines that load a model and use it, as far as it reads what is in no corpus."""
    load = ["from pipelines.models import load_exported", "", f"model = load_exported({folder!r})"]
    adapter = exported.adapter
    if not hasattr(adapter, "visual_inputs"):
        return "\n".join([*load, "print(sorted(model.adapter.assets))", "print(model.model)"])
    dim = adapter.assets.get("visual", {}).get("dim")
    if dim:
        load.insert(0, "import numpy as np")
    given = (
        f"[np.random.rand(36, {dim})]  # features (N, {dim}) of each image or video"
        if dim
        else '["image.jpg"]'
    )
    asked = (
        'model.answers(given, ["what is in the picture?"])'
        if hasattr(adapter, "vocabulary")
        else 'model.scores(given, ["a dog on the grass"])'
    )
    return "\n".join([*load, f"given = {given}", f"print({asked})"])


def _readme(tracker: Tracker, exported: Exported, folder: str) -> str:
    run, metrics = exported.run, tracker.metrics()
    shown = [name for name in sorted(metrics) if name.startswith(f"{run.protocol}/") and name.count("/") == 1]
    scores = ", ".join(f"{name} {metrics[name]:.2f}" for name in shown) or "none were kept"
    features = tracker.tag("data.features")
    return "\n\n".join(
        [
            "# A trained model of polypool",
            f"`{run.recipe}` with `{run.aggregator}`, task `{run.task}`, data `{run.data.dataset}`, seed {run.seed}: "
            f"run `{tracker.run_id}`, commit `{tracker.tag('git_commit') or 'unknown'}`. Scores: {scores}.",
            *(
                [f"It reads features like those of the store with the digest `{features}`."]
                if features
                else []
            ),
            f"```python\n{example(exported, folder)}\n```",
            "`encode_visual` and `encode_text` give embeddings where the model has such. `run.json` is the whole run,\n"
            "`assets.json` what is needed beside the weights, such as the vocabulary.\n",
        ]
    )


@command
def main() -> None:
    """Export, and say how to load."""
    options = tyro.cli(Options, prog="python -m pipelines.export", description=__doc__)
    exported = export(options.run_id, options.out)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"written to {options.out}: {size / 1e6:,.1f} MB\n\n{example(exported, str(options.out))}")


if __name__ == "__main__":
    main()
