"""Turn published annotations and features into a corpus and feature stores.

polypool ingest table --file TABLE --out DIR [--image-column NAME] [--text-column NAME] [--split 80/10/10]
polypool ingest table --file train=TABLE val=TABLE test=TABLE --out DIR [--images DIR | --videos DIR]
polypool ingest folder --dir DIR --out DIR [--split 80/10/10]
polypool ingest webdataset --shards TAR [TAR ...] --images DIR --out DIR
polypool ingest hf --name NAME|FOLDER --images DIR --out DIR
polypool ingest karpathy --json dataset_coco.json --images DIR --out DIR [--limit N]
polypool ingest scan --dir DIR | --file FILE [FILE ...] --out DIR
polypool ingest msrvtt --json FILE [FILE ...] --out DIR [--videos DIR]
polypool ingest msrvtt-1ka --json FILE [FILE ...] --train CSV --test CSV --out DIR
polypool ingest vatex --training FILE --validation FILE --out DIR [--language zh] [--val-ids FILE] [--test-ids FILE]
polypool ingest msvd --captions FILE --lists DIR --out DIR
polypool ingest paragraphs --train FILE --test FILE --out DIR [--val FILE] [--videos DIR]
polypool ingest hgr --captions FILE --splits DIR --out DIR
polypool ingest hgr-features --dir DIR | --file FILE [FILE ...] --splits DIR --out DIR
polypool ingest vqa2 --questions FILE [FILE ...] --annotations FILE [FILE ...] --out DIR [--images DIR]
polypool ingest butd --dir DIR | --file FILE [FILE ...] --out DIR [--corpus DIR]
polypool ingest hdf5 --dir DIR | --file FILE [FILE ...] --out DIR [--ids FILE | --ids-key NAME] [--corpus DIR]
polypool ingest arrays --dir DIR | --file FILE [FILE ...] --out DIR [--ids FILE] [--corpus DIR]
polypool ingest graphs --corpus DIR [--out FILE] [--parser MODEL]
polypool ingest verify --store DIR
"""

from __future__ import annotations

import sys

import tyro

from polypool.infra.process.command import command
from polypool.pipelines.data.ingestion import subcommands


@command
def main() -> None:
    """Run the subcommand named on the command line."""
    tyro.extras.subcommand_cli_from_dict(
        subcommands(sys.argv[1:]),
        prog="polypool ingest",
        description="Turn annotations and features into a corpus and feature stores.",
    )
