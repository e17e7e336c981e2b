from dataclasses import replace

import pytest
from corpora import make_corpus, make_questions
from PIL import Image

from polypool.tasks.datasets.corpus import media_file, open_corpus


@pytest.mark.parametrize("make", [make_corpus, make_questions])
def test_only_files_of_the_corpus_are_named(make, tmp_path):
    images = tmp_path / "images"
    corpus = open_corpus(make(tmp_path, images=images).data.corpus)
    item = corpus.items("test")[0]
    assert media_file(corpus, item) is None, "it is gone"
    images.mkdir(exist_ok=True)
    for path in (images / "inside.png", tmp_path / "secret.png", images / item.path):
        Image.new("RGB", (9, 9)).save(path)
    assert media_file(corpus, item) == images / item.path
    assert media_file(corpus, replace(item, path=str(images / "inside.png"))) == images / "inside.png"
    for path in ("", ".", "gone.png", "../secret.png", str(tmp_path / "secret.png")):
        assert media_file(corpus, replace(item, path=path)) is None, path
