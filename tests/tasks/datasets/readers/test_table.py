"""User tables, as read by `ingest table`."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from verbs import corpus_of, ingested, reasons, refused, run

from polypool.tasks.datasets.corpus import Corpus, QuestionCorpus

PICTURES = 12
TEXTS = [(f"the picture {n}", f"a photograph, number {n}") for n in range(PICTURES)]
ROWS = [{"image": f"pictures/{n}.png", "caption": text} for n, texts in enumerate(TEXTS) for text in texts]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder that contains images."""
    (tmp_path / "pictures").mkdir()
    for n in range(PICTURES):
        Image.new("L", (2, 2), 20 * n).save(tmp_path / "pictures" / f"{n}.png")
    return tmp_path


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table in the format of its file extension."""
    kind = path.suffix
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == ".json":
        path.write_text(json.dumps(rows))
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "\t" if kind == ".tsv" else ";" if "semicolon" in path.name else ","
        lines = [[*rows[0]], *([f'"{value}"' for value in row.values()] for row in rows)]
        path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines), "utf-8-sig")
    return path


def captions(corpus: Corpus) -> dict[str, tuple[str, ...]]:
    return {item.id: item.captions for split in corpus.splits for item in corpus.items(split)}


@pytest.mark.parametrize("name", ["a.csv", "semicolon.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_every_file_format_makes_the_same_corpus(name, folder):
    said, corpus, _ = corpus_of(folder / "out", "table", "--file", written(folder / name, ROWS))
    assert "guessed: image: the column 'image'" in said
    assert "guessed: text: the column 'caption'" in said
    assert ("guessed: fields are separated by ';'" in said) == ("semicolon" in name)
    assert captions(corpus) == {f"pictures/{n}.png": texts for n, texts in enumerate(TEXTS)}
    assert {split: len(corpus.items(split)) for split in corpus.splits} == {"train": 8, "val": 2, "test": 2}
    assert all(corpus.image_path(item).is_file() for item in corpus.items("train"))


def test_caption_lists_and_split_and_id_columns_are_read(folder):
    words = ["Training", "validation", "TEST", "held-out"]
    rows = [
        {"key": 100 + n, "where": f"{n}.png", "said": [f"first {n}", f"second {n}"], "part": words[n % 4]}
        for n in range(PICTURES)
    ]
    named = {"image": "where", "id": "key", "text": "said", "split": "part"}
    columns = [word for part, name in named.items() for word in (f"--{part}-column", name)]
    files = ("--file", written(folder / "a.jsonl", rows), "--images", folder / "pictures")
    said, corpus, _ = corpus_of(folder / "out", "table", *files, *columns)
    assert "guessed" not in said
    assert sorted(corpus.splits) == ["held-out", "test", "train", "val"]
    (item, *_) = corpus.items("val")
    assert (item.id, item.path, item.captions) == ("101", "1.png", ("first 1", "second 1"))


def test_rows_with_one_answer_each_join_into_questions(folder):
    rows = [
        {"image": f"pictures/{n}.png", "question": f"What is {ask}?", "answer": answer}
        for n in range(PICTURES)
        for ask in ("this", "that")
        for answer in ("a dog", "a cat", "a dog")
    ]
    said = ingested("table", "--file", written(folder / "a.csv", rows), "--out", folder / "out")
    assert "guessed: answer: the column 'answer'" in said
    assert f"{2 * PICTURES} questions" in said
    questions = QuestionCorpus.open(folder / "out").questions("train")
    assert len(questions) == 16
    first = questions[0]
    assert (first.answers, first.label) == (("a dog", "a cat", "a dog"), "a dog")
    assert first.image_id == first.path
    assert {each.id for each in questions} < {
        str(n) for n in range(1, 6 * PICTURES, 3)
    }  # numbers of their first rows
    assert (questions[0].id, questions[1].id) == ("1", "4")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_json_lists_of_strings_in_cells_are_several_texts(name, folder):
    separator = "\t" if name.endswith("tsv") else ","
    cells = ['"[""one, two"", ""three""]"', "[music] a band", '"[""cut"""', "[1]", "[]"]
    lines = [f"pictures/{n}.png{separator}{cell}{separator}train" for n, cell in enumerate(cells)]
    (folder / name).write_text("\n".join([separator.join(("image", "raw", "split")), *lines]))
    words = ("table", "--file", folder / name, "--text-column", "raw", "--allow-skipped")
    assert captions(corpus_of(folder / "out", *words)[1]) == {
        "pictures/0.png": ("one, two", "three"),
        "pictures/1.png": ("[music] a band",),
        "pictures/2.png": ('["cut"',),
        "pictures/3.png": ("[1]",),
    }


def test_each_question_of_a_list_gets_its_own_answer_and_id(folder):
    """GRAM's test questions of ActivityNet-QA are lists, its training questions are not."""
    train = [{"video_id": f"v{n}", "question": "What?", "answer": "a cat"} for n in range(3)]
    test = [
        {
            "video_id": "v8",
            "question": ["Who?", "Where?", "Who?"],
            "answer": ["a man", "here", ["he", "she"]],
        },
        {"video_id": "v9", "question": ["Who?", "Where?"], "answer": ["a man"]},
        {"video_id": "v9", "question": ["Who?", "Where?"], "answer": "a man"},
        {"video_id": "v9", "question": ["Why?"], "answer": ["so", "thus"]},
    ]
    files = [
        f"{split}={written(folder / f'{split}.json', rows)}"
        for split, rows in (("train", train), ("test", test))
    ]
    ingested("table", "--file", *files, "--allow-skipped", "--out", folder / "out")
    questions = QuestionCorpus.open(folder / "out").questions("test")
    assert [(each.id, each.image_id, each.question, each.answers) for each in questions] == [
        ("4-1", "v8", "Who?", ("a man",)),
        ("4-2", "v8", "Where?", ("here",)),
        ("4-3", "v8", "Who?", ("he", "she")),
        ("7", "v9", "Why?", ("so", "thus")),
    ]
    why = "a list of questions without an answer to each"
    assert reasons(folder / "out", "questions.skipped.jsonl") == [
        (f"test.json, row {row}", why) for row in (2, 3)
    ]
    rows = [row | {"question_id": ["a", "b", "c"][: len(row["question"])]} for row in test[:1]]
    ingested("table", "--file", f"test={written(folder / 'test.json', rows)}", "--out", folder / "ids")
    assert [each.id for each in QuestionCorpus.open(folder / "ids").questions("test")] == ["a", "b", "c"]


def records(folder: Path) -> list[dict[str, Any]]:
    """Return VQA 2.0's records as in copies on the Hub: two questions per image, ten answers each."""
    return [
        {
            "question_type": "what is",
            "multiple_choice_answer": "a dog",
            "answers": [
                {"answer": said, "answer_confidence": "yes", "answer_id": place}
                for place, said in enumerate(["a dog"] * 7 + ["cat", "Dog", "a dog"], 1)
            ],
            "image_id": 100 + n // 2,
            "answer_type": "other",
            "question_id": 1000 + n,
            "question": f"What is it {n}?",
            "image": {"bytes": (folder / "pictures" / f"{n // 2}.png").read_bytes(), "path": None},
        }
        for n in range(2 * PICTURES)
    ]


def test_vqa_records_match_the_official_files(folder):
    rows = records(folder)
    for name, left_out in (("questions", {"image", "answers"}), ("annotations", {"image", "question"})):
        entries = [{key: row[key] for key in row if key not in left_out} for row in rows]
        (folder / f"{name}.json").write_text(json.dumps({name: entries}))
    files = ("--questions", folder / "questions.json", "--annotations", folder / "annotations.json")
    ingested("vqa2", "--split", "train", "--dev", 0, *files, "--out", folder / "official")
    expected = QuestionCorpus.open(folder / "official").questions("train")
    (folder / "hub" / "data").mkdir(parents=True)
    table = written(folder / "hub" / "data" / "train-00000-of-00001.parquet", rows)
    words = {"table": ("--file", table), "hf": ("--name", folder / "hub", "--images", folder / "written")}
    for reader, where in words.items():
        if reader == "hf":
            pytest.importorskip("datasets", reason="not installed (pip install 'polypool[hf]')")
        said = ingested(reader, *where, "--out", folder / reader)
        assert ("pictures inside the table: `polypool ingest hf" in said) == (reader == "table")
        assert "24 with 10; scored by the protocol vqa" in said
        corpus = QuestionCorpus.open(folder / reader)
        found = [question for split in corpus.splits for question in corpus.questions(split)]
        of_record = {each.id: replace(each, split="train", path="", sha256="") for each in found}
        assert of_record == {each.id: each for each in expected}
    paths = {each.image_id: corpus.image_path(each).read_bytes() for each in found}
    assert len([*(folder / "written").rglob("*.png")]) == len(paths) == PICTURES  # each written once
    assert paths["103"] == (folder / "pictures" / "3.png").read_bytes()


def test_val_hint_counts_pictures_instead_of_questions(folder):
    rows = [
        {"image": f"pictures/{n}.png", "question": f"What is {ask}?", "answer": "a dog", "split": split}
        for n in range(PICTURES)
        for ask in range(20)
        for split in ["test" if n == 0 else "train"]
    ]
    table = written(folder / "a.csv", rows)
    assert ": --val 1 takes it" in ingested("table", "--file", table, "--out", folder / "out")
    assert "no val split" not in ingested("table", "--file", table, "--val", 1, "--out", folder / "again")


def test_questions_need_answers_only_in_answered_splits(folder):
    said = [["cat"], None, [], ["dog"]]
    rows = [
        {"id": n, "question": "What?", "answers": answers, "question_id": f"q{n}", "split": split}
        for n, (split, answers) in enumerate(
            [("train", said[0]), ("train", said[1]), ("val", said[3]), ("test", said[1]), ("test", said[2])]
        )
    ]
    ingested("table", "--file", written(folder / "a.json", rows), "--out", folder / "out", "--allow-skipped")
    corpus = QuestionCorpus.open(folder / "out")
    assert {split: [each.id for each in corpus.questions(split)] for split in corpus.splits} == {
        "train": ["q0"],
        "val": ["q2"],
        "test": ["q3", "q4"],
    }
    rows = [row for row in rows if row["question_id"] != "q0"]
    refused("nothing usable", "table", "--file", written(folder / "a.json", rows[:1]), "--out", folder / "no")
    written(folder / "a.json", [{key: row[key] for key in ("id", "question")} for row in rows])
    refused("as one of answer usually is", "table", "--file", folder / "a.json", "--out", folder / "no")


def test_table_without_image_column_needs_ids(folder):
    rows = [{"name": f"v{n}", "text": f"clip {n}"} for n in range(PICTURES)]
    words = ("table", "--file", written(folder / "a.csv", rows))
    message = "--id-column where there are features alone, or --image-column where there are images: the table has name"
    refused(message, *words, "--out", folder / "out")
    assert captions(corpus_of(folder / "out", *words, "--id-column", "name")[1])["v3"] == ("clip 3",)
    written(folder / "a.csv", [{"id": f"w{n}", "text": f"clip {n}"} for n in range(PICTURES)])
    said, corpus, _ = corpus_of(folder / "out", *words)
    assert "guessed: id: the column 'id' (--id-column says another)" in said
    assert captions(corpus)["w3"] == ("clip 3",)
    rows = [{"id": n, "image_id": f"x{n // 2}", "text": f"clip {n}"} for n in range(2 * PICTURES)]
    written(folder / "a.csv", rows)  # image ids take precedence over row ids
    assert captions(corpus_of(folder / "out", *words)[1])["x3"] == ("clip 6", "clip 7")


def test_videos_and_images_are_found_by_id(folder):
    listed = [
        {"video_id": f"video{n}", "desc": text[0] if n % 2 else [*text], "subtitle": " you"}
        for n, text in enumerate(TEXTS)
    ]
    for n in range(1, PICTURES):
        frames = folder / "frames" / f"video{n}"
        frames.mkdir(parents=True)
        (frames / "img0.jpg").touch()
    for split, part in (("train", listed[:8]), ("test", listed[8:])):
        written(folder / f"descs_ret_{split}.json", part)
    files = [f"{split}={folder / f'descs_ret_{split}.json'}" for split in ("train", "test")]
    rows = ("table", "--file", *files, "--val", 2)
    told, corpus, skipped = corpus_of(folder / "out", *rows, "--videos", folder / "frames")
    assert corpus.splits == {"train": 5, "val": 2, "test": 4}
    assert skipped == [
        ("descs_ret_train.json, row 1, id video0", f"no such picture or video in {folder / 'frames'}")
    ]
    first, second, *_ = corpus.items("test")
    assert (first.path, first.captions, second.captions) == ("video8/", TEXTS[8], TEXTS[9][:1])
    assert " --video " in told
    refused("holds no videos", *rows, "--out", folder / "no", "--videos", folder / "pictures")

    for name in ("a_9", "b_9"):  # two videos of one number have it only in their full names
        (folder / "frames" / name).mkdir()
        (folder / "frames" / name / "0.jpg").touch()
    numbers = [{"video_id": n, "caption": "x", "split": "train"} for n in (3, 10, 9)]
    file = written(folder / "numbers.json", numbers)
    _, corpus, skipped = corpus_of(folder / "out", "table", "--file", file, "--videos", folder / "frames")
    assert [item.path for item in corpus.items("train")] == ["video3/", "video10/"]
    assert [where for where, _ in skipped] == ["numbers.json, row 3, id 9"]

    asked = [
        {
            "split": "train" if n % 3 else "val",
            "image_id": n,
            "question_id": f"22MexN{n}",
            "question": f"What is {n}?",
            "choices": ["a", "b", "c", "d"],
            "correct_choice_idx": 1,
            "direct_answers": ["cab"] * 7 + ["taxi"] * 3,
            "difficult_direct_answer": False,
            "rationales": ["So it is."],
        }
        for n in range(PICTURES)
    ]
    files = ("--file", written(folder / "aokvqa_v1p0.json", asked), "--images", folder / "pictures")
    assert "12 with 10; scored by the protocol vqa" in ingested("table", *files, "--out", folder / "asked")
    questions = QuestionCorpus.open(folder / "asked")
    assert questions.splits == {"train": 8, "val": 4}
    _, question, *_ = questions.questions("val")
    assert (question.id, question.image_id, question.path) == ("22MexN3", "3", "3.png")
    assert question.answers == ("cab",) * 7 + ("taxi",) * 3


def test_video_column_accepts_folders_of_frames(folder):
    (folder / "clips" / "1").mkdir(parents=True)
    (folder / "clips" / "1" / "0001.png").touch()
    (folder / "clips" / "2.mp4").touch()
    names = ["clips/1", "clips/2.mp4", "clips/1/", "clips/3"]
    table = written(
        folder / "a.csv", [{"video": name, "caption": f"a {name}", "split": "train"} for name in names]
    )
    _, corpus, skipped = corpus_of(folder / "out", "table", "--file", table)
    assert [(item.id, item.path) for item in corpus.items("train")] == [
        ("clips/1", "clips/1/"),
        ("clips/2.mp4", "clips/2.mp4"),
        ("clips/1/", "clips/1/"),
    ]
    assert skipped == [("a.csv, row 4, clips/3", f"no such file in {folder}")]
    why = "--videos finds videos by id, and the column 'video' has paths"
    refused(why, "table", "--file", table, "--out", folder / "no", "--videos", folder / "clips")


QUESTIONS = [{"image_id": n, "question": f"What is {n}?", "answer": f"a {n}"} for n in range(PICTURES)]


@pytest.mark.parametrize(
    "content",
    [
        {"dataset": "textvqa", "data": [{**row, "question_id": 100 + n} for n, row in enumerate(QUESTIONS)]},
        {str(100 + n): row | {"imageId": row.pop("image_id")} for n, row in enumerate(map(dict, QUESTIONS))},
        [{**row, "id": 100 + n, "category_id": 1} for n, row in enumerate(QUESTIONS)],
    ],
    ids=["TextVQA", "GQA", "MSRVTT-QA"],
)
def test_ids_of_published_questions_are_read(content, folder):
    (folder / "a.json").write_text(json.dumps(content))
    words = ("--file", folder / "a.json", "--images", folder / "pictures", "--out", folder / "out")
    ingested("table", *words)
    opened = QuestionCorpus.open(folder / "out")
    found = {each.id: each for split in opened.splits for each in opened.questions(split)}
    assert len(found) == PICTURES
    one = found["103"]
    assert (one.path, one.question, one.answers) == ("3.png", "What is 3?", ("a 3",))


def test_coco_captions_name_files_in_subfolders(folder):
    (folder / "pictures" / "b").mkdir()
    (folder / "pictures" / "3.png").rename(folder / "pictures" / "b" / "3.png")
    for name in ("b", "c"):
        (folder / "pictures" / name).mkdir(exist_ok=True)
        (folder / "pictures" / name / "twice.png").touch()
    images = [{"id": 70 + n, "file_name": f"{n}.png"} for n in range(PICTURES)]
    images += [{"id": 90, "file_name": "twice.png"}]
    rows = [{"id": 7, "image_id": 70 + n, "caption": text} for n, texts in enumerate(TEXTS) for text in texts]
    content = {
        "images": images,
        "licenses": [{}],
        "annotations": [*rows, {"image_id": 90, "caption": "a"}, {"image_id": 91, "caption": "a"}],
    }
    (folder / "a.json").write_text(json.dumps(content))
    words = ("--file", folder / "a.json", "--images", folder / "pictures")
    _, corpus, skipped = corpus_of(folder / "out", "table", *words)
    assert captions(corpus) == {f"{n}.png": texts for n, texts in enumerate(TEXTS)}
    paths = {item.path for split in corpus.splits for item in corpus.items(split)}
    assert paths == {*(f"{n}.png" for n in range(PICTURES) if n != 3), "b/3.png"}
    assert skipped == [
        ("a.json, row 25, twice.png", f"no such file in {folder / 'pictures'}"),
        ("a.json, row 26", "a row without a picture or video"),
    ]


def test_lists_assign_splits_to_token_file(folder):
    """The forms of `Flickr8k.token.txt` and `Flickr_8k.trainImages.txt`."""
    lines = [f'{n}.png#{k}\t"{text}' for n, texts in enumerate(TEXTS) for k, text in enumerate(texts)]
    (folder / "a.token.txt").write_text("\n".join(lines))
    listed = {"train": range(8), "validation": [7, 8, 9], "test": [9, 10, 40]}
    for split, numbers in listed.items():
        (folder / f"{split}.txt").write_text("\n".join(f"{n}.png" if n % 2 else str(n) for n in numbers))
    lists = [f"{split}={folder / f'{split}.txt'}" for split in listed]
    words = ("table", "--file", folder / "a.token.txt", "--images", folder / "pictures", "--lists")
    _, corpus, skipped = corpus_of(folder / "out", *words, *lists)
    found = {split: [item.id for item in corpus.items(split)] for split in corpus.splits}
    assert found == {
        "train": [f"{n}.png" for n in range(7)],
        "val": ["7.png", "8.png"],
        "test": ["9.png", "10.png"],
    }
    assert captions(corpus)["3.png"] == tuple(f'"{text}' for text in TEXTS[3])
    why = "a picture or video in no list"
    assert skipped == [(f"a.token.txt, row {row}, 11.png", why) for row in (23, 24)]
    assert {*reasons(folder / "out", "corpus.warnings.jsonl")} == {
        ("7.png", "in the lists of train and val; it stays in val"),
        ("9.png", "in the lists of val and test; it stays in test"),
        ("40", "in the list of test, but not in the table"),
    }
    refused("test.txt: say the split", *words, *lists[:2], folder / "test.txt", "--out", folder / "no")


def test_absolute_paths_must_be_inside_image_folder(folder, monkeypatch):
    (folder / "tables").mkdir()
    rows = [row | {"image": str(folder / row["image"])} for row in ROWS]
    words = ("table", "--file", written(folder / "tables" / "a.csv", rows))
    message = (
        f"a path that leaves the folder {folder / 'tables'}; --images says another one, / for absolute paths"
    )
    refused(message, *words, "--out", folder / "out")
    assert len(captions(corpus_of(folder / "out", *words, "--images", "/")[1])) == PICTURES
    monkeypatch.chdir(folder)  # so that the table's path is relative
    written(folder / "a.csv", rows)
    assert len(captions(corpus_of(folder / "out", "table", "--file", "a.csv")[1])) == PICTURES


def test_unusable_rows_are_counted_and_listed(folder):
    lines = [
        "image,caption,split",
        *(f"pictures/{n}.png,the picture {n},train" for n in range(PICTURES)),
        "pictures/3.png,three,val",
        "pictures/99.png,nothing,train",
        "https://example.org/1.png,an address,train",
        ",no picture,train",
        "pictures/4.png,",
        'pictures/5.png,"two',
        'lines",train',
        "../away.png,away,train",
    ]
    (folder / "a.csv").write_text("\n".join(lines))
    (folder.parent / "away.png").touch()
    words = ("table", "--file", folder / "a.csv")
    refused("--allow-skipped", *words, "--out", folder / "out", code=1)  # more than 5% are skipped
    said, corpus, skipped = corpus_of(folder / "out", *words)
    assert [why for _, why in skipped] == [
        f"no such file in {folder}",
        "an address, and no path of a file; fetch the files first",
        "a row without a picture or video",
        "a row of 2 fields, where the header has 3",
        f"a path that leaves the folder {folder}; --images says another one, / for absolute paths",
        "a row in another split than the first one of its picture or video",
    ]
    assert "a text of several lines; if it is none, a quote in the file is not closed" in said
    assert captions(corpus)["pictures/5.png"] == ("the picture 5", "two lines")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"image,caption\n1.png,caf\xe9\n", "can't decode byte 0xe9 in position 23"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"image,image\n1,2\n", "several columns called image"),
        ("a.csv", b"image,words\n1.png,a\n", "with --text-column: the table has image, words"),
        ("a.jsonl", b'{"image": "1.png", "caption": "a"}\n{"image": ', "a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"image": "1.png", "caption": "a", "image": "2.png"}\n', "the key 'image' is twice"),
        ("a.jsonl", b"[1]\n", "expected a list of objects"),
        ("a.jsonl", b'{"image": "1.png", "capt\xc3on": "a"}\n', "'utf-8' codec"),
        ("a.json", b'{"image": "1.png"}', "expected a list of objects"),
        ("a.json", b'["1.png"]', "expected a list of objects"),
        ("a.json", b'[{"image": "1.png", "caption": "a", "image": "2.png"}]', "the key 'image' is twice"),
        ("a.csv", b'image,caption\n1.png,"a\n', "perhaps a quote is not closed"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.xlsx", b"", "ends in .xlsx, expected a table"),
    ],
)
def test_unreadable_table_exits_2_with_one_message(name, content, why, folder):
    (folder / name).write_bytes(content)
    code, _, error = run("table", "--file", folder / name, "--out", folder / "out")
    assert (code, error.count("\n")) == (2, 1)
    assert why in error
    assert not [*(folder / "out").glob("*.arrow")]


def split_files(
    folder: Path, *names: str, rows: Sequence[slice] = (slice(0, 8), slice(8, 10), slice(10, 12))
) -> list[str]:
    """Write one table per slice of the images; return the paths of the tables."""
    pictures = [[ROWS[2 * n + k] for n in range(PICTURES)[part] for k in (0, 1)] for part in rows]
    return [str(written(folder / name, each)) for name, each in zip(names, pictures, strict=False)]


def test_file_option_assigns_splits(folder):
    train, val, test = split_files(folder, "a.csv", "b.csv", "c.csv")
    words = ("table", "--file", f"train={train}", f"validation={val}", f"test={test}")
    said, corpus, _ = corpus_of(folder / "out", *words)
    assert "random" not in said
    assert corpus.splits == {"train": 8, "val": 2, "test": 2}
    assert [item.id for item in corpus.items("val")] == ["pictures/8.png", "pictures/9.png"]
    refused("say the split, as for the others, such as test=", *words[:4], test, "--out", folder / "out")
    refused("--file says the splits", *words, "--split", "8/1/1", "--out", folder / "out")


def test_question_splits_may_share_images(folder):
    rows = [{"image": f"pictures/{n}.png", "question": "What?", "answer": "a dog"} for n in range(PICTURES)]
    other = [row | {"question": "Why?"} for row in rows[:3]]
    files = f"train={written(folder / 'a.csv', rows)}", f"test={written(folder / 'b.csv', other)}"
    said = ingested("table", "--file", *files, "--val", 2, "--out", folder / "out")
    assert "15 questions (train 10 about 10 images, val 2 about 2 images, test 3 about 3 images)" in said
    assert "nothing skipped" in said
    assert "3 x" in said  # images shared by splits


def test_file_names_of_splits_require_explicit_choice(folder):
    train, test = split_files(folder, "captions_train.csv", "dev.csv")
    words = ("table", "--file", train, test, "--out", folder / "out")
    refused(f"--file train={train} val={test} keeps these splits, --split 80/10/10 divides", *words)
    assert "splits are random" in ingested(*words, "--split", "80/10/10")
    (folder / "out" / "corpus.json").unlink()
    one, two = split_files(folder, "train_1.csv", "train_2.csv")
    assert "splits are random" in ingested("table", "--file", one, two, "--out", folder / "out")
    rows = [row | {"split": ("train", "val", "test")[n % 3]} for n, row in enumerate(ROWS[::2])]
    for name, part in (("train.csv", rows[:6]), ("test.csv", rows[6:])):
        written(folder / name, part)
    files = ("table", "--file", folder / "train.csv", folder / "test.csv")
    assert corpus_of(folder / "out", *files)[1].splits == {"train": 4, "val": 4, "test": 4}


def test_paths_are_relative_to_their_own_table(folder):
    for split, numbers in (("train", range(8)), ("val", range(2)), ("test", range(2))):
        (folder / split / "pictures").mkdir(parents=True)
        for n in numbers:
            os.link(folder / "pictures" / f"{n}.png", folder / split / "pictures" / f"{n}.png")
        written(folder / split / "captions.csv", ROWS[: 2 * len(numbers)])
    files = [folder / split / "captions.csv" for split in ("train", "val", "test")]
    refused(
        f"--file train={files[0]} val={files[1]} test={files[2]}",
        "table",
        "--file",
        *files,
        "--out",
        folder / "out",
    )
    named = (f"{path.parent.name}={path}" for path in files)
    _, corpus, skipped = corpus_of(folder / "out", "table", "--file", *named)
    assert (corpus.splits, skipped) == ({"train": 8, "val": 2, "test": 2}, [])
    (item, _) = corpus.items("test")
    assert (item.id, corpus.image_path(item)) == ("test/pictures/0.png", folder / "test/pictures/0.png")


def test_val_option_takes_val_split_from_train(folder):
    train, _, test = split_files(folder, "a.csv", "b.csv", "c.csv")
    words = ("table", "--file", f"train={train}", f"test={test}")
    said, whole, _ = corpus_of(folder / "out", *words)
    assert "polypool train" not in said
    assert "no val split, on which `train` chooses the epoch: --val 1 takes it" in said
    said, corpus, _ = corpus_of(folder / "out", *words, "--val", 3)
    assert "no val split" not in said
    assert corpus.splits == {"train": 5, "val": 3, "test": 2}
    assert (
        "give it a share" in corpus_of(folder / "shares", "table", "--file", train, "--split", "80/0/20")[0]
    )
    ids = {item.id for split in ("train", "val") for item in corpus.items(split)}
    assert ids == {item.id for item in whole.items("train")}
    other = corpus_of(folder / "out", *words, "--val", 3, "--seed", 1)[1]
    assert {item.id for item in corpus.items("val")} != {item.id for item in other.items("val")}
    refused(
        "--val 8: expected 1 or more, and fewer than the 8 of train",
        *words,
        "--val",
        8,
        "--out",
        folder / "out",
    )
    words = ("table", "--file", f"train={train}", f"val={test}", "--val", 3)
    refused("makes a val split of train, and the data have one", *words, "--out", folder / "out")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--split", "80/20"), "such as 80/10/10"),
        (("--split", "0/1/1"), "the first above 0"),
        (("--split", "80/10/nan"), "such as 80/10/10"),
        (("--val", "2"), "--val 2 is for data with splits of their own"),
        (
            ("--split", "8/1/1", "--split-column", "caption"),
            "give one of --split, --split-column and --lists",
        ),
        (("--text-column", "captoin"), "Did you mean 'caption'"),
    ],
)
def test_invalid_options_are_refused(words, why, folder):
    refused(why, "table", "--file", written(folder / "a.csv", ROWS), "--out", folder / "out", *words)
