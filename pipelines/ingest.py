"""Turn published annotations and features into a corpus and feature stores, and published models into runs.

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
python -m pipelines.ingest arrays --dir DIR --out DIR
python -m pipelines.ingest vse-infinity model_best.pth [--vocab FILE]
python -m pipelines.ingest verify --store DIR
"""

from __future__ import annotations

from pathlib import Path

import tyro

from infra.errors import command
from pipelines.ingesting.feature_stores import arrays, butd, hdf5, hgr_features, verify
from pipelines.ingesting.image_corpora import karpathy, scan, vqa2
from pipelines.ingesting.video_corpora import hgr, msrvtt, msrvtt_1ka, msvd, vatex


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


@command
def main() -> None:
    """Run the subcommand that is named on the command line."""
    corpora = [karpathy, scan, msrvtt, msrvtt_1ka, vatex, msvd, hgr, vqa2]
    verbs = [*corpora, butd, hdf5, arrays, hgr_features, vse_infinity, verify]
    tyro.extras.subcommand_cli_from_dict(
        {verb.__name__.replace("_", "-"): verb for verb in verbs},
        prog="python -m pipelines.ingest",
        description="Turn published annotations and features into a corpus and feature stores, and models into runs.",
    )


if __name__ == "__main__":
    main()
