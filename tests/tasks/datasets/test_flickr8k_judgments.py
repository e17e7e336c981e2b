"""Judgments of pairs of Flickr8k: small files of the official form, damaged ones, and the official files."""

import numpy as np
import pytest
from judgment_files import write_flickr8k

from polypool.infra.errors import InputError
from polypool.tasks.datasets.flickr8k_judgments import FILES, read_judgments


def test_both_files_are_read(tmp_path, capsys):
    write_flickr8k(
        tmp_path,
        expert=[("a_1", "b_2#2", (1, 2, 4)), ("a_1", "a_1#0", (4, 4, 3))],
        crowd=[("a_1", "b_2#4", (1, 2)), ("b_2", "b_2#4", (3, 0))],
    )
    expert, crowd = (read_judgments(tmp_path, kind) for kind in FILES)
    assert expert.rating_PR.tolist() == [[1, 2, 4], [4, 4, 3]]
    np.testing.assert_allclose(crowd.rating_PR, [[1 / 3], [1]])
    assert (crowd.image_P.tolist(), crowd.owner_P.tolist()) == (["a_1", "b_2"], ["b_2", "b_2"])
    assert (expert.number_P.tolist(), expert.own_P.tolist()) == ([2, 0], [False, True])
    assert "experts): expert 2 of 5,822 pairs" in capsys.readouterr().out


GOOD = "a.jpg\tb.jpg#2\t"


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("expert", GOOD + "1\t2"),
        ("expert", GOOD + "1\t2\t5"),
        ("expert", GOOD + "1\t2\t2.5"),
        ("expert", GOOD + "1\t2\t3\t4"),
        ("expert", "a.jpg\tb.jpg\t1\t2\t3"),
        ("expert", "x/a.jpg\tb.jpg#2\t1\t2\t3"),
        ("crowd", GOOD + "0.5\t1\t2"),
        ("crowd", GOOD + "nan\t0\t0"),
        ("crowd", GOOD + "1.5\t3\t-1"),
        ("crowd", GOOD + "yes\t1\t2"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, kind, line):
    good = GOOD + ("1\t2\t3" if kind == "expert" else "0.0\t0\t3")
    (tmp_path / FILES[kind]).write_text(f"{good}\n{line}\n")
    with pytest.raises(InputError, match=f"{FILES[kind]}: line 2: .* is no judgment"):
        read_judgments(tmp_path, kind)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="the task's parameter flickr8k"):
        read_judgments(tmp_path, "expert")
    write_flickr8k(tmp_path)
    with pytest.raises(InputError, match="no judgments; the file is cut short"):
        read_judgments(tmp_path, "expert")


def test_the_official_files_are_as_published(shared, capsys):
    expert, crowd = (read_judgments(shared / "data" / "flickr8k", kind) for kind in FILES)
    assert capsys.readouterr().out == ""
    assert (len(expert), int(expert.own_P.sum()), int((~expert.own_P).sum())) == (5822, 158, 5664)
    assert (len(crowd), crowd.rating_PR.shape[1]) == (47_830, 1)
    test = (shared / "data" / "flickr8k" / "Flickr_8k.testImages.txt").read_text().split()
    judged = {*expert.image_P, *expert.owner_P, *crowd.image_P, *crowd.owner_P}
    assert judged == {name.removesuffix(".jpg") for name in test}
