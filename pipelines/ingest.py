"""Turn published annotations and features into a corpus and feature stores, and published models into runs.

python -m pipelines.ingest table --file TABLE --out DIR [--image-column NAME] [--text-column NAME] [--split 80/10/10]
python -m pipelines.ingest folder --dir DIR --out DIR [--split 80/10/10]
python -m pipelines.ingest webdataset --shards TAR [TAR ...] --images DIR --out DIR
python -m pipelines.ingest hf --name NAME|FOLDER --images DIR --out DIR
python -m pipelines.ingest karpathy --json dataset_coco.json --images DIR --out DIR
python -m pipelines.ingest scan --dir DIR --out DIR
python -m pipelines.ingest msrvtt --json FILE [FILE ...] --out DIR [--videos DIR]
python -m pipelines.ingest msrvtt-1ka --json FILE [FILE ...] --train CSV --test CSV --out DIR
python -m pipelines.ingest vatex --training FILE --validation FILE --out DIR [--val-ids FILE] [--test-ids FILE]
python -m pipelines.ingest msvd --captions FILE --lists DIR --out DIR
python -m pipelines.ingest hgr --captions FILE --splits DIR --out DIR
python -m pipelines.ingest hgr-features --dir DIR --splits DIR --out DIR
python -m pipelines.ingest vqa2 --questions FILE [FILE ...] --annotations FILE [FILE ...] --out DIR [--images DIR]
python -m pipelines.ingest butd --tsv FILE [FILE ...] --out DIR
python -m pipelines.ingest hdf5 --file FILE --ids FILE --out DIR
python -m pipelines.ingest lmdb --dir DIR --out DIR
python -m pipelines.ingest arrays --dir DIR --out DIR
python -m pipelines.ingest vse-infinity model_best.pth [--vocab FILE]
python -m pipelines.ingest verify --store DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from infra.errors import InputError, MissingError, command
from infra.registry import READERS
from infra.trust import vouch
from pipelines.ingesting.corpora import scan, verb_of
from pipelines.ingesting.feature_stores import arrays, butd, hdf5, hgr_features, lmdb, verify
from pipelines.sources.here import where_published


def vse_infinity(
    checkpoint: tyro.conf.Positional[Path],
    *,
    vocab: Path | None = None,
    bert: str = "bert-base-uncased",
    corpus: str = "",
    features: str = "",
    experiment: str = "polypool",
) -> None:
    """Read a released VSE-infinity model, into a run that can be evaluated; nothing in the file is run.

    Args:
        checkpoint: a model_best.pth: regions or grid, BERT or BiGRU.
        vocab: SCAN's coco_precomp_vocab.json or f30k_precomp_vocab.json, for a BiGRU.
        bert: model on the hub, or local folder, with tokenizer and configuration, for BERT.
        corpus: folder of the corpus; data/coco or data/flickr30k where none is given.
        features: folder of a region model's store; regions in the same folder where none is given.
        experiment: MLflow experiment of the run.
    """
    from pipelines.ingesting.release import read_release
    from pipelines.ingesting.vse_infinity import convert, track

    release = read_release(checkpoint)
    converted = convert(
        release, vocab=vocab, bert=bert, corpus=corpus, features=features, experiment=experiment
    )
    run = converted.run
    print(f"{checkpoint}: {run.visual}, {run.text}, {run.aggregator}, epoch {release.epoch}")
    print(f"  RSUM on its development split, as its authors measured it: {release.best_rsum:.1f}")
    run_id = track(release, converted)
    print(f"run {run_id}: score it with python -m pipelines.evaluate {run_id}")


def _readers(words: Sequence[str]) -> list[str]:
    """Return the readers that can be used, and the `module:Name` of one that the command line names."""
    named = [word for word in words[:1] if ":" in word]
    for name in named:
        vouch(name)
    return [name for name, _ in READERS.usable()] + named


@command
def main() -> None:
    """Run the subcommand that is named on the command line."""
    own = [scan, butd, hdf5, lmdb, arrays, hgr_features, vse_infinity, verify]
    verbs = {name: verb_of(name) for name in _readers(sys.argv[1:])}
    try:
        tyro.extras.subcommand_cli_from_dict(
            verbs | {verb.__name__.replace("_", "-"): verb for verb in own},
            prog="python -m pipelines.ingest",
            description="Turn annotations and features into a corpus and feature stores, and models into runs.",
        )
    except MissingError as error:
        raise InputError(f"{error}{where_published(error.path)}") from error


if __name__ == "__main__":
    main()
