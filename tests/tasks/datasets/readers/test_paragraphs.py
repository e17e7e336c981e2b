"""DiDeMo's moments and ActivityNet's sentences, joined into one paragraph per video."""

from annotations import activitynet_video, didemo_entry, write_paragraphs
from verbs import corpus_of, refused


def texts(corpus, split: str) -> dict[str, tuple[str, ...]]:
    return {item.id: item.captions for item in corpus.items(split)}


def test_didemo_moments_are_joined_in_file_order(tmp_path):
    """The training file also has a moment of a test video and malformed entries."""
    train = [didemo_entry(1, "a dog sits. "), didemo_entry(2, "a red car")]
    train += [didemo_entry(1, "the dog runs", times=[[5, 5]])]
    names = [f"12090392@N02_2{suffix}" for suffix in (".", ".qt", ".mts")]
    train += [didemo_entry(2, f"entry {n}", video=name) for n, name in enumerate(names)]
    train += [didemo_entry(4, "leaks"), didemo_entry(1, 7), "no object", {"video": "x.mov"}]
    options = write_paragraphs(
        tmp_path,
        train=train,
        val=[didemo_entry(3, "a cat")],
        test=[didemo_entry(4, "a bird"), didemo_entry(5, "b")],
    )
    out, corpus, skipped = corpus_of(tmp_path / "out", "paragraphs", *options, "--allow-skipped")
    assert "5 items (train 2, val 1, test 2), 5 captions" in out
    assert "DiDeMo" in out
    assert texts(corpus, "train") == {
        "12090392@N02_1": ("a dog sits. the dog runs",),
        "12090392@N02_2": ("a red car entry 0 entry 1 entry 2",),
    }
    assert texts(corpus, "val") == {"12090392@N02_3": ("a cat",)}
    form = "not of the expected form: a video"
    assert skipped == [
        ("id 12090392@N02_4, train.json, entry 6", "a video of another split, where it is left"),
        ("train.json, entry 7", f"{form} whose description is missing or no string"),
        ("train.json, entry 8", f"{form} that is not an object"),
        ("train.json, entry 9", f"{form} whose description is missing or no string"),
    ]


def test_activitynet_without_val_file_holds_out_val(tmp_path):
    train = {f"v_{n}": activitynet_video("A man kneels.", f"  He reads {n}. ") for n in range(6)}
    train |= {"v_bad": activitynet_video("A", 7), "v_none": {"duration": 3.0}}
    test = {f"v_t{n}": activitynet_video("One.", " Two.") for n in range(2)}
    options = write_paragraphs(tmp_path, train=train, test=test)
    files = ("paragraphs", *options, "--allow-skipped")
    out, corpus, skipped = corpus_of(tmp_path / "out", *files, "--held-out", 2)
    assert corpus.splits == {"train": 4, "val": 2, "test": 2}
    assert "val is 2 videos held out of train.json (seed 0)" in out
    every = texts(corpus, "train") | texts(corpus, "val")
    assert every == {f"v_{n}": (f"A man kneels. He reads {n}.",) for n in range(6)}
    assert texts(corpus, "test") == {"v_t0": ("One. Two.",), "v_t1": ("One. Two.",)}
    assert [where for where, _ in skipped] == ["id v_bad, train.json, entry 6", "train.json, entry 7"]
    other = corpus_of(tmp_path / "out", *files, "--held-out", 2, "--seed", 1)[1]
    assert texts(other, "val") != texts(corpus, "val")
    refused("held_out=6: expected 0 or more, and fewer than the 6 usable", *files, "--held-out", 6)
    refused("expected form", "paragraphs", *write_paragraphs(tmp_path, train=3, test=test))
