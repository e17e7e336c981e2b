"""Questions about the demo's scenes with ten answers each, written as VQA 2.0 is published.

They are about the pictures of `rendered.scenes`: number and seed name the same ones. Of ten people some use
another word and some err, so no model can be perfect, and half of the answers to questions of yes and no are no.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polypool.infra.errors import InputError
from polypool.infra.files import make_folder, write_json
from polypool.infra.process.progress import Progress
from polypool.pipelines.data.rendered.captions import EXTREMES, SYNONYMS, Wording, plural, with_article
from polypool.pipelines.data.rendered.scenes import picture_of, save_picture, scene_of
from polypool.pipelines.data.rendered.shapes import BACKGROUNDS, COLOURS, FORMS, PATTERNS, Scene, Shape

QUESTIONS = 8  # about each scene
PEOPLE = 10
_FEWEST = 20  # scenes, so that no split is empty
_ERR, _OTHER_WORD = 0.08, 0.2  # how often a person errs, and says another word for the same
_SUBTYPES = ("train2014", "val2014")


@dataclass(frozen=True, kw_only=True)
class SceneQuestion:
    """A question, its type, its right answer and wrong ones."""

    question: str
    type: str
    right: str
    wrong: tuple[str, ...]

    @property
    def answer_type(self) -> str:
        """The kind of answer, as VQA 2.0 calls it."""
        if self.right in ("yes", "no"):
            return "yes/no"
        return "number" if self.right.isdigit() else "other"


def questions(scene: Scene, rng: np.random.Generator, *, count: int = QUESTIONS) -> list[SceneQuestion]:
    """Return `count` different questions about a scene, of all kinds in turn."""
    questioner, unique = _Questioner(scene, rng), {}
    kinds = rng.permutation(len(questioner.kinds))
    turn = 0
    while len(unique) < count:
        question = questioner.kinds[kinds[turn % len(kinds)]]()
        turn += 1
        if question:
            unique.setdefault(question.question, question)
    return list(unique.values())


class _Questioner(Wording):
    """Asks one question of each kind, where a scene has what it is about."""

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.scene = scene
        self.forms, self.colours = (
            Counter(getattr(shape, name) for shape in scene.shapes) for name in ("form", "colour")
        )
        self.kinds: tuple[Callable[[], SceneQuestion | None], ...] = (
            *(self.colour, self.colour, self.number, self.number, self.form, self.side),
            *(self.background, self.existence, self.existence, self.relation, self.pattern),
        )

    def colour(self) -> SceneQuestion | None:
        """Ask "What color is the star?" where there is one star."""
        alone = self.alone("form")
        if not alone:
            return None
        shape = self.one_of(*alone)
        return self.question(
            "what color is the", f"What color is the {self.word(shape.form)}?", shape.colour, COLOURS
        )

    def background(self) -> SceneQuestion:
        """Ask "What color is the background?"."""
        return self.question(
            "what color is the", "What color is the background?", self.scene.background, BACKGROUNDS
        )

    def number(self) -> SceneQuestion:
        """Ask "How many circles are there?", of forms, of colours or of all shapes; sometimes there is none."""
        form, colour = self.one_of(*self.forms, *self.forms, *FORMS), self.one_of(*self.colours, *COLOURS)
        what, number = self.one_of(
            (self.word(form), self.forms[form]),
            (f"{self.word(colour)} {self.word('shape')}", self.colours[colour]),
            (self.word("shape"), len(self.scene.shapes)),
        )
        near = [str(other) for other in (number - 1, number + 1) if other >= 0]
        return self.question("how many", f"How many {plural(what)} are there?", str(number), near)

    def form(self) -> SceneQuestion | None:
        """Ask "What shape is red?" where one is."""
        alone = self.alone("colour")
        if not alone:
            return None
        shape = self.one_of(*alone)
        return self.question("what shape is", f"What shape is {self.word(shape.colour)}?", shape.form, FORMS)

    def side(self) -> SceneQuestion:
        """Ask "What shape is on the left?"."""
        side = self.one_of(*EXTREMES)
        shape = min(self.scene.shapes, key=EXTREMES[side])
        return self.question("what shape is", f"What shape is {self.word(side)}?", shape.form, FORMS)

    def existence(self) -> SceneQuestion:
        """Ask "Is there a red star?" of a colour and a form that are there, together or not."""
        pairs = {(shape.colour, shape.form) for shape in self.scene.shapes}
        others = {(colour, form) for colour in self.colours for form in self.forms} - pairs
        truly = not others or self.chance(0.5)
        colour, form = self.one_of(*sorted(pairs if truly else others))
        name = with_article(f"{self.word(colour)} {self.word(form)}")
        return self.yes_or_no("is there a", f"Is there {name}?", truly)

    def relation(self) -> SceneQuestion | None:
        """Ask "Is the star left of the ring?" where there is one of each."""
        alone = self.alone("form")
        if len(alone) < 2:
            return None
        one, other = (alone[i] for i in self.rng.permutation(len(alone))[:2])
        where, truly = self.one_of(
            ("left of", one.x < other.x),
            ("right of", one.x > other.x),
            ("above", one.y < other.y),
            ("below", one.y > other.y),
        )
        question = f"Is the {self.word(one.form)} {self.word(where)} the {self.word(other.form)}?"
        return self.yes_or_no("is the", question, truly)

    def pattern(self) -> SceneQuestion:
        """Ask "Is the background striped?"."""
        pattern = self.one_of(self.scene.pattern, self.one_of(*PATTERNS))
        return self.yes_or_no("is the", f"Is the background {pattern}?", pattern == self.scene.pattern)

    def yes_or_no(self, type: str, question: str, truly: bool) -> SceneQuestion:
        return self.question(type, question, "yes" if truly else "no", ("yes", "no"))

    def question(self, type: str, question: str, right: str, choices: Any) -> SceneQuestion:
        wrong = tuple(choice for choice in choices if choice != right)
        return SceneQuestion(question=question, type=type, right=right, wrong=wrong)

    def alone(self, name: str) -> list[Shape]:
        """Return the shapes whose form or colour no other one has."""
        counts = self.forms if name == "form" else self.colours
        return [shape for shape in self.scene.shapes if counts[getattr(shape, name)] == 1]


def answers(question: SceneQuestion, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return what ten people answer, in VQA's form."""
    words, ten = SYNONYMS.get(question.right, (question.right,)), []
    for number in range(PEOPLE):
        errs, varies, place = rng.random(3)
        choices = question.wrong if errs < _ERR else words[1:] if varies < _OTHER_WORD else ()
        answer = choices[int(place * len(choices))] if choices else words[0]
        confidence = "maybe" if errs < _ERR else "yes"
        ten.append({"answer": answer, "answer_confidence": confidence, "answer_id": number + 1})
    return ten


def write_scene_questions(
    folder: str | Path, *, images: int = 600, seed: int = 0
) -> tuple[list[Path], list[Path]]:
    """Write pictures, questions and annotations below `folder`, and return the paths of the two kinds of JSON files.

    Pictures that `write_scenes` wrote there, of the same seed, are left as they are. Of every 20 scenes, 15 are for
    training (`train2014`) and 5 for the test (`val2014`).

    Raises:
        InputError: fewer than 20 images, so that a split is empty, or nothing can be written there.
    """
    if images < _FEWEST:
        raise InputError(f"{images} scenes: expected at least {_FEWEST}, so that no split is empty")
    folder = Path(folder)
    head = {"info": {"description": "questions about rendered scenes"}, "task_type": "Open-Ended"}
    head |= {"data_type": "scenes"}
    files: dict[Path, dict[str, Any]] = {}
    paths: dict[str, list[Path]] = {}
    for kind, prefix in (("questions", "v2_OpenEnded_scenes"), ("annotations", "v2_scenes")):
        paths[kind] = [folder / f"{prefix}_{subtype}_{kind}.json" for subtype in _SUBTYPES]
        files |= {
            path: head | {"data_subtype": subtype, kind: []}
            for path, subtype in zip(paths[kind], _SUBTYPES, strict=True)
        }
    for subtype in _SUBTYPES:
        make_folder(folder / "images" / subtype)
    for index in Progress(range(images), desc="questions about scenes", unit="image"):
        scene, _, rng = scene_of(index, seed=seed)
        path = folder / picture_of(index)
        if not path.exists():
            save_picture(scene, rng, path)
        part = _SUBTYPES.index(path.parent.name)
        for entries in _entries(index, scene, np.random.default_rng([seed, index, 1])):
            for kind, entry in zip(paths, entries, strict=True):
                files[paths[kind][part]][kind].append(entry)
    for path, held in files.items():
        write_json(path, held)
    return paths["questions"], paths["annotations"]


def _entries(
    index: int, scene: Scene, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the entries of each of a scene's questions in both files."""
    for number, question in enumerate(questions(scene, rng)):
        people = answers(question, rng)
        ids = {"image_id": index + 1, "question_id": (index + 1) * 1000 + number}
        label = Counter(entry["answer"] for entry in people).most_common(1)[0][0]
        kinds = {"question_type": question.type, "answer_type": question.answer_type}
        annotation = ids | kinds | {"multiple_choice_answer": label, "answers": people}
        yield ids | {"question": question.question}, annotation
