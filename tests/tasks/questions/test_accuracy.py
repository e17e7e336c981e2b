import numpy as np
import pytest

from polypool.tasks.questions.accuracy import (
    HumanAnswers,
    accuracy_by_group,
    normalise,
    protocol_for,
    vocabulary_answer,
    with_digits,
    without_punctuation,
)


@pytest.fixture(scope="module")
def recorded(golden) -> dict[str, np.ndarray]:
    with np.load(golden / "vqa_accuracy.npz", allow_pickle=False) as z:
        return dict(z)


@pytest.mark.parametrize("version", ["2021", "2017"])
def test_accuracy_matches_recorded_outputs(recorded, version):
    answers, predictions = recorded["ground_truth"].tolist(), recorded["prediction"].tolist()
    found_Q = HumanAnswers(answers).accuracy(predictions, version=version)
    expected_Q = recorded[f"accuracy_{version}"]
    assert len(set(expected_Q.tolist())) > 3
    np.testing.assert_allclose(np.round(100 * found_Q, 2), expected_Q, rtol=0, atol=1e-9)


def test_accuracy_supports_any_number_of_answers():
    people = HumanAnswers([["x", "x"], ["x"] * 4, ["x"], ["x"] * 2 + ["y"] * 10, ["x"] * 3 + ["X", "y"]])
    for version in ("2021", "2017"):
        found = people.accuracy(["x"] * 5, version=version)
        assert found == pytest.approx(
            [1 / 3, 1, 0, (10 * 2 + 2 * 1) / 36, 1 if version == "2021" else 12 / 15]
        )


def test_exact_match_is_share_of_normalised_answers():
    people = HumanAnswers([["Yes!"], ["1,000"], ["yes"], ["a cat", "Cat", "dog"], ["x"] * 3 + ["y"] * 9])
    assert people.exact_match(["yes", "1000", "no", "cat", "x"]) == pytest.approx([1, 1, 0, 2 / 3, 1 / 4])


@pytest.mark.parametrize(
    ("counts", "protocol"),
    [
        ({10: 100}, "vqa"),
        ({0: 50, 10: 3}, "vqa"),  # questions of test-dev have none
        ({9: 1, 10: 98, 12: 1}, "vqa"),  # ingest drops damaged answers
        ({9: 2, 10: 98}, "exact-match"),
        ({11: 5}, "vqa"),
        ({1: 5}, "exact-match"),
    ],
)
def test_protocol_depends_on_answer_counts(counts, protocol):
    assert protocol_for(counts) == protocol


def test_accuracy_is_averaged_by_type(recorded):
    accuracy_Q = recorded["accuracy_2021"] / 100
    kinds = recorded["answer_types"][recorded["answer_type"]].tolist()
    starts = recorded["question_types"][recorded["question_type"]].tolist()
    found = accuracy_by_group(accuracy_Q, answer_types=kinds, question_types=starts)
    assert found["accuracy"] == pytest.approx(100 * accuracy_Q.mean())
    for kind, name in (("yes/no", "yes_no"), ("number", "number"), ("other", "other")):
        assert found[name] == pytest.approx(100 * accuracy_Q[np.array(kinds) == kind].mean())
    for start in set(starts):
        assert found[f"type/{start}"] == pytest.approx(100 * accuracy_Q[np.array(starts) == start].mean())
    assert len(found) == 1 + len(set(kinds)) + len(set(starts))


STEPS = {
    "punctuation": without_punctuation,
    "digit_article": with_digits,
    "vocabulary_answer": vocabulary_answer,
}
STEPS |= dict.fromkeys(("composed_2021", "composed_2017"), normalise)


@pytest.mark.parametrize("key", STEPS)
def test_normaliser_matches_all_recorded_strings(golden, key):
    with np.load(golden / "vqa_normaliser.npz", allow_pickle=False) as z:
        given, expected = z["input"].tolist(), z[key].tolist()
        assert {"long_periods", "non_ascii_digit"} <= set(z.files)  # these rows are compared as well
    wrong = {
        text: STEPS[key](text) for text, to in zip(given, expected, strict=True) if STEPS[key](text) != to
    }
    assert len(given) > 1000
    assert not wrong
