"""Turn published annotations and features into a corpus and feature stores, and published models into runs.

polypool ingest table --file TABLE --out DIR [--image-column NAME] [--text-column NAME] [--split 80/10/10]
polypool ingest table --file train=TABLE val=TABLE test=TABLE --out DIR
polypool ingest folder --dir DIR --out DIR [--split 80/10/10]
polypool ingest webdataset --shards TAR [TAR ...] --images DIR --out DIR
polypool ingest hf --name NAME|FOLDER --images DIR --out DIR
polypool ingest karpathy --json dataset_coco.json --images DIR --out DIR [--limit N]
polypool ingest scan --dir DIR | --file FILE [FILE ...] --out DIR
polypool ingest msrvtt --json FILE [FILE ...] --out DIR [--videos DIR]
polypool ingest msrvtt-1ka --json FILE [FILE ...] --train CSV --test CSV --out DIR
polypool ingest vatex --training FILE --validation FILE --out DIR [--val-ids FILE] [--test-ids FILE]
polypool ingest msvd --captions FILE --lists DIR --out DIR
polypool ingest hgr --captions FILE --splits DIR --out DIR
polypool ingest hgr-features --dir DIR | --file FILE [FILE ...] --splits DIR --out DIR
polypool ingest vqa2 --questions FILE [FILE ...] --annotations FILE [FILE ...] --out DIR [--images DIR]
polypool ingest butd --dir DIR | --file FILE [FILE ...] --out DIR [--corpus DIR]
polypool ingest hdf5 --dir DIR | --file FILE [FILE ...] --out DIR [--ids FILE | --ids-key NAME] [--corpus DIR]
polypool ingest arrays --dir DIR | --file FILE [FILE ...] --out DIR [--ids FILE] [--corpus DIR]
polypool ingest graphs --corpus DIR [--out FILE] [--parser MODEL]
polypool ingest vse-infinity model_best.pth [--vocab FILE]
polypool ingest verify --store DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

from polypool.infra.errors import InputError, MissingError
from polypool.infra.process.command import command
from polypool.infra.process.output import print_next
from polypool.pipelines.data.ingestion import subcommands
from polypool.pipelines.data.public_sets import where_published


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
    from polypool.pipelines.models.released import convert, track
    from polypool.pipelines.models.released_parts import read_release

    release = read_release(checkpoint)
    converted = convert(
        release, vocab=vocab, bert=bert, corpus=corpus, features=features, experiment=experiment
    )
    run = converted.run
    print(f"{checkpoint}: {run.visual}, {run.text}, {run.aggregator}, epoch {release.epoch}")
    print(f"  RSUM on its development split, as its authors measured it: {release.best_rsum:.1f}")
    run_id = track(release, converted)
    print(f"run {run_id}")
    print_next(("score it", ("evaluate", run_id)))


@command
def main() -> None:
    """Run the subcommand that is named on the command line."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            subcommands(sys.argv[1:]) | {"vse-infinity": vse_infinity},
            prog="polypool ingest",
            description="Turn annotations and features into a corpus and feature stores, and models into runs.",
        )
    except MissingError as error:
        raise InputError(f"{error}{where_published(error.path)}") from error
