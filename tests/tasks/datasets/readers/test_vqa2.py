"""Questions in VQA 2.0's files: splits, images, what is held out, real files whole."""

from pathlib import Path

import pytest
from verbs import ingested, reasons, refused
from vqa2_files import arguments, asked, told, write

from polypool.tasks.datasets.corpus import Question, QuestionCorpus
from polypool.tasks.datasets.readers.vqa2 import Vqa2


def official(folder: Path) -> list[Path]:
    """Two questions to each of twenty training and three validation images, and some of both test splits."""
    folder.mkdir(exist_ok=True)
    made = []
    for subtype, images in (("train2014", range(20)), ("val2014", range(100, 103))):
        pairs = [(10 * image + n, image) for image in images for n in range(2)]
        made.append(write(folder, subtype, "questions", [asked(*pair) for pair in pairs]))
        made.append(write(folder, subtype, "annotations", [told(*pair) for pair in pairs][::-1]))
    made.append(write(folder, "test-dev2015", "questions", [asked(9000, 900)]))
    made.append(write(folder, "test2015", "questions", [asked(9000, 900), asked(9010, 901)]))
    return made


def test_the_official_files(tmp_path):
    files, out = official(tmp_path / "in"), tmp_path / "out"
    said = ingested("vqa2", *arguments(files), "--out", out)
    assert "49 questions (" in said
    assert "train 38 about 19 images" in said
    assert "nothing skipped" in said
    assert "answers of a question: 3 with none, 46 with 10; scored by the protocol vqa" in said
    assert "test split" not in said
    alone = ingested("vqa2", *arguments(files[:2]), "--out", tmp_path / "train")
    assert "add v2_OpenEnded_mscoco_val2014_questions.json to --questions" in alone
    corpus = QuestionCorpus.open(out)
    assert corpus.splits == {"train": 38, "val": 2, "test": 6, "test-dev": 1, "test2015": 2}
    train, val = ({each.image_id for each in corpus.questions(split)} for split in ("train", "val"))
    assert not train & val
    assert train | val == {str(image) for image in range(20)}
    assert corpus.questions("test")[1] == Question(
        id="1001",
        split="test",
        image_id="100",
        question="What is it 1001?",
        question_type="what is",
        answer_type="other",
        answers=("cat",) * 7 + ("the cat", "dog", "dog"),
        label="cat",
    )
    unanswered = Question(id="9000", split="test2015", image_id="900", question="What is it 9000?")
    assert corpus.questions("test2015")[0] == unanswered
    assert [image.id for image in corpus.items("test")] == ["100", "101", "102"]
    assert sorted(corpus.ids.to_pylist()) == sorted([*map(str, [*range(20), 100, 101, 102, 900, 901])])


def test_the_held_out_images_depend_on_the_seed_alone(tmp_path):
    questions, annotations, *_ = official(tmp_path / "in")

    def drawn(**options: float) -> set[str]:
        rows = Vqa2(questions=(questions,), annotations=(annotations,), **options).read().rows
        return {each.image_id for each in rows if each.split == "val"}

    given = [drawn(), drawn(), drawn(seed=1), drawn(dev=0.5), drawn(dev=0)]
    assert [len(images) for images in given] == [1, 1, 1, 10, 0]
    assert given[0] == given[1] != given[2]
    assert given[0] < given[3]


def test_images_are_found_by_number(tmp_path):
    kept = ["val2014/COCO_val2014_000000000007.jpg", "8.PNG", "deep/er/scene_9.jpeg", "x.jpg"]
    for name in (*kept, "train2014/COCO_train2014_000000000007.jpg", "10.txt"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    pairs = list(enumerate([7, 8, 9, 10, "x"]))
    entries = {"questions": [asked(*pair) for pair in pairs], "annotations": [told(*pair) for pair in pairs]}
    files = [write(tmp_path, "val2014", *entry) for entry in entries.items()]
    out = tmp_path / "out"
    ingested("vqa2", *arguments(files), "--images", tmp_path / "images", "--out", out, "--allow-skipped")
    corpus = QuestionCorpus.open(out)
    found = corpus.questions("test")
    assert [each.path for each in found] == kept
    assert all(corpus.image_path(each).is_file() for each in [*found, *corpus.items("test")])
    lost = ("question 3, image 10", f"no such image in {tmp_path / 'images'}")
    assert reasons(out, "questions.skipped.jsonl") == [lost]
    (tmp_path / "empty").mkdir()
    for place, message in (
        ("none", "no such folder"),
        ("empty", "holds no images; expected files that end in .jpg"),
    ):
        refused(message, "vqa2", *arguments(files), "--images", tmp_path / place, "--out", out)


@pytest.mark.parametrize(
    ("subtype", "name", "split", "expected"),
    [
        ("val2014", "questions.json", (), "test"),
        ("", "v2_OpenEnded_mscoco_val2014_questions.json", (), "test"),
        ("test2015", "v2_OpenEnded_mscoco_test-dev2015_questions.json", (), "test-dev"),
        ("abstract_v002", "q.json", ("test",), "test"),
        ("train2014", "val2014.json", ("test2015",), "test2015"),
    ],
)
def test_the_split_of_a_file(tmp_path, subtype, name, split, expected):
    path = write(tmp_path, subtype, "questions", [asked(1, 1)], name=name)
    assert [each.split for each in Vqa2(questions=(path,), split=split).read().rows] == [expected]


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("v2_OpenEnded_mscoco_valid_subset_questions", "v2_mscoco_valid_subset_annotations"), 8977),
        (("withimages_questions", "withimages_annotations"), 127),
    ],
    ids=["subset", "subset with images"],
)
def test_real_files_whole(shared, tmp_path, names, count):
    folder = shared / "data" / "vqa2_subset"
    files, images = [folder / f"{name}.json" for name in names], count == 127
    options = ("--images", folder / "images") if images else ()
    assert "nothing skipped" in ingested("vqa2", *arguments(files), *options, "--out", tmp_path / "out")
    corpus = QuestionCorpus.open(tmp_path / "out")
    assert sum(corpus.splits.values()) == count
    for split in corpus.splits:
        assert all(len(each.answers) == 10 for each in corpus.questions(split))
        assert not images or all(corpus.image_path(item).is_file() for item in corpus.items(split))
    images_of = {split: len(corpus.items(split)) for split in ("train", "val")}
    assert 0.03 < images_of["val"] / sum(images_of.values()) < 0.07
