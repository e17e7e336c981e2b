"""User workflow: captions in scripts without spaces, or longer than a model's positions."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import save_bert
from toy import trainer_of
from verbs import called, ingested

from polypool.pipelines.recipes.arguments import read_run
from polypool.pipelines.training.train import prepare, start
from polypool.tasks.run import Run

WORDS = {
    "zh": ("草地上有一只{}的狗", "一只{}的狗草地上有", "红 绿 蓝 白 黑"),
    "th": ("สุนัข{}บนหญ้า", "บนหญ้าสุนัข{}", "แดง เขียว ฟ้า ขาว ดำ"),
    "en": ("{} " * 40, "{} " * 40, "dog run the and one"),
}
"""Per language: a training caption, an evaluation caption of the same words, and the words for five kinds."""


def captioned(folder: Path, language: str, *words: str) -> Run:
    """Ingest features of 30 pictures of five kinds with captions that name the kind; return a run."""
    seen, new, kinds = WORDS[language]
    rows = [
        {
            "id": str(n),
            "caption": (seen if split == "train" else new).format(*[kinds.split()[n % 5]] * 40),
            "split": split,
        }
        for n, split in enumerate(["train"] * 20 + ["val"] * 5 + ["test"] * 5)
    ]
    (folder / "captions.json").write_text(json.dumps(rows, ensure_ascii=False))
    x_ND = np.eye(5, dtype=np.float32)
    np.savez(folder / "sets.npz", **{str(n): x_ND[[n % 5] * 2] + n / 1000 for n in range(30)})
    corpus, features = folder / "mine", folder / "mine" / "features"
    ingested("table", "--file", folder / "captions.json", "--out", corpus)
    ingested("arrays", "--file", folder / "sets.npz", "--corpus", corpus, "--out", features)
    more = ["--aggregator", "mean", "--no-figures", "--optim.batch", "5", "--optim.lr", "0.005"]
    return read_run(
        "image_text", ["--corpus", str(corpus), "--features", str(features), *more, *map(str, words)]
    )


def test_thai_words_without_spaces_are_learned(tmp_path, capsys):
    run = captioned(tmp_path, "th", "--optim.epochs", 8)
    trainer = trainer_of(run, tmp_path, adapter=prepare(run))
    trainer.train()
    evaluation = trainer.adapter.evaluate(trainer.model.eval(), "test", "whole")
    assert evaluation.metrics["ties"] == 0
    assert evaluation.metrics["t2i/R1"] >= 60
    assert "unknown" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "query", "said"),
    [
        ("zh", "黑的狗 dog", "note: the model has never seen 'dog', and reads it as an unknown word"),
        ("en", "one one", "note: of 5 images any order looks plausible"),
    ],
)
def test_language_workflow_from_files_to_search(language, query, said, new_home, capfd):
    text = ()
    if language == "en":
        name = save_bert(new_home / "bert", positions=16)
        text = ("--text", f"bert(name={name!r}, width=256)", "--data.max-words", 0)
    run_id = start(captioned(new_home, language, "--optim.epochs", 3, *text))
    cut = "test: 5 of 5 texts are cut to the 14 tokens that the model reads"
    assert (cut in capfd.readouterr().out) == (language == "en")
    for verb in (("evaluate", run_id), ("compare",), ("search", run_id, query, "--split", "test")):
        code, out, err = called(*verb)
        assert code == 0, (verb, err)
    assert "searched: 5 images of the split test" in out
    assert said in out
