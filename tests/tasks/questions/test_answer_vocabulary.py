import numpy as np
import pytest

from polypool.tasks.questions.accuracy import vocabulary_answer
from polypool.tasks.questions.answer_report import AnswerPrior, first_words
from polypool.tasks.questions.vocabulary import AnswerVocabulary

SOFT = {0: 0, 1: 0.3, 2: 0.6, 3: 0.9}


def counted(answers: list[list[str]], words: list[str]) -> np.ndarray:
    """Return soft targets by definition."""
    return np.array([[SOFT.get(of.count(word), 1) for word in words] for of in answers], np.float32)


def test_vocabulary_keeps_answers_of_nine_questions():
    labels = ["Cats"] * 8 + ["the cats!"] + ["dog"] * 8 + ["two"] * 5 + ["2"] * 4 + ["b"] * 9
    vocabulary = AnswerVocabulary.build(labels)
    assert vocabulary.answers == ("2", "b", "cats")
    assert AnswerVocabulary.build(reversed(labels)).answers == vocabulary.answers
    assert AnswerVocabulary.build(labels, min_count=8).answers == ("2", "b", "cats", "dog")
    assert vocabulary.coverage(labels) == pytest.approx(27 / 35)
    assert vocabulary.coverage([]) == 0


def test_share_targets_count_normalised_answers():
    answers = [["Two", "2", "a dog", "bird"], ["The cat!"], ["bird"], []]
    targets = AnswerVocabulary(["2", "cat", "dog"]).share_targets(answers).batch(np.arange(4))
    assert targets.tolist() == [[0.5, 0, 0.25], [0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_hard_targets_mark_the_normalised_label():
    targets = AnswerVocabulary(["2", "cat"]).hard_targets(["The cat", "bird", "two"])
    assert targets.batch(np.array([2, 1, 0])).tolist() == [[1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("least", [3, 9])
def test_soft_targets_match_recorded_outputs(golden, least):
    """The record does not name the answer of each column: find it by its values, then compare all columns."""
    with np.load(golden / "vqa_accuracy.npz", allow_pickle=False) as z:
        answers, target_QA = z["ground_truth"].tolist(), z[f"soft_target_min{least}"]
        labels = z["multiple_choice_answer"].tolist()
    said = sorted({answer for of in answers for answer in of if vocabulary_answer(answer) == answer})
    column = {word: counted(answers, [word])[:, 0] for word in said}
    names, found = [], [""]
    for a, target_Q in enumerate(target_QA.T):
        fits = [word for word in said if word > found[-1] and np.array_equal(column[word], target_Q)]
        assert fits or not target_Q.any(), f"no answer after {found[-1]!r} has the targets of column {a}"
        if target_Q.any():
            found.append(fits[0])
        names.append(fits[0] if target_Q.any() else f"never said {a}")
    assert len(found) > len(names) / 2
    vocabulary = AnswerVocabulary(names)
    assert set(AnswerVocabulary.build(labels, min_count=least).answers) & set(said) <= set(names)
    np.testing.assert_array_equal(vocabulary.soft_targets(answers).batch(np.arange(len(answers))), target_QA)


def test_answer_prior_predicts_by_first_words():
    questions = ["What color is it?", "what  Color, now", "What color is that?"]
    questions += ["Is it new?", "is it old", "Is he?"]
    prior = AnswerPrior(questions, ["red", "blue", "red", "yes", "no", "yes"])
    assert prior.most_frequent == "red"  # tied with yes; first in the alphabet
    asked = ["WHAT COLOR?", "is it", "Is he here?", "Who?", "", "What colorful"]
    assert prior.predict(asked) == ["red", "no", "yes", "red", "red", "red"]
    assert first_words("Why, though?") == ("why", "though")
