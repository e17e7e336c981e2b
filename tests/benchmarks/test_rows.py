"""Every benchmark at a tiny size, and the references that some compare with."""

import dataclasses
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import nullcontext
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from places import ROOT
from quadratic import Quadratic

from benchmarks import table
from benchmarks.features import cold, formats, memory_group, other_formats, page_cache
from benchmarks.measure import Measurement, apart
from benchmarks.pooling import growth, sorted_sum
from benchmarks.random_data import caption_corpus, feature_sets, feature_store, random_tensors
from benchmarks.scoring import evaluation, ranks, reranking
from benchmarks.searching import page
from benchmarks.training import watched
from benchmarks.training.steps import parts
from polypool.infra.errors import InputError
from polypool.infra.registry import SIMILARITIES
from polypool.pipelines.training.loop import precision
from polypool.tasks.datasets.corpus import Corpus
from polypool.tasks.models.dual_encoder import SplitEmbeddings
from polypool.tasks.scoring.ranking import reranking as first_pass

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function that measures a benchmark once, at a tiny size."""

    @cache
    def measured(name: str) -> list[Measurement]:
        folder = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(folder))
            try:
                rows = list(table.BENCHMARKS[name]("tiny"))
            except InputError as error:  # a package or a permission is missing
                pytest.skip(str(error))
        assert not list(folder.glob("tmp*")), "a temporary folder was left behind"
        return rows

    return measured


FAST = {"store", "ranks", "evaluation", "adopt"}
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in table.BENCHMARKS]


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_runs_small_and_gives_sane_numbers(name, tiny):
    rows = tiny(name)
    assert rows
    for found in rows:
        assert math.isfinite(found.ratio), found
        assert found.ours >= 0, found
        assert found.reference > 0, found
        low, high = found.spread or (found.ratio, found.ratio)
        assert low <= found.ratio <= high, found
        assert found.measured, found


@pytest.mark.parametrize("name", NAMES)
def test_the_page_on_speed_shows_every_row_in_the_order_of_the_table(name, tiny):
    def kind(row_name: str) -> str:
        return re.sub(r"[\d,]+", "#", row_name)  # sizes differ

    speed = (ROOT / "docs/speed.md").read_text()
    shown = [kind(line.split(" | ")[0]) for line in re.findall(r"^\| (.+)", speed, re.MULTILINE)]
    rows = list(dict.fromkeys(kind(row.name) for row in tiny(name) if not row.detail))
    assert [row for row in dict.fromkeys(shown) if row in rows] == rows


def test_the_parts_of_a_step_make_up_the_whole():
    shares = [found.ours for found in table.BENCHMARKS["step"]("tiny")]
    assert len(shares) == 3
    watch = watched.Watch(device=torch.device("cpu"))
    watch.ended, watch.began, watch.scored = [0.0, 5.0, 9.0], [1.0, 5.5, 10.0], [3.0, 8.0]
    assert parts(watch).tolist() == [[1000, 2000, 2000], [500, 2500, 1000]]


def test_training_stops_after_the_steps_that_were_asked_for(tmp_path):
    run = watched.random_run(tmp_path, watched.TrainingSize.of("tiny"))
    watch = watched.train(run, steps=3, device=torch.device("cpu"))
    assert [len(times) for times in (watch.began, watch.scored, watch.ended)] == [4, 3, 4]
    assert len(watch.batches) >= 4
    steps = zip(watch.ended, watch.began, [*watch.scored, math.inf], strict=True)
    times = [time for step in steps for time in step]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["paper_step", "bert_step"])
def test_steps_against_the_authors_are_in_float32_where_training_is_in_bfloat16(name, monkeypatch):
    monkeypatch.setattr(precision, "computes_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "times_faster", lambda *shape: math.inf)
    assert table.BENCHMARKS[name]("tiny")


def test_the_plain_loop_pads_like_the_store(tmp_path):
    size_S, rows = np.array([2, 5, 1, 3]), np.array([3, 0, 3])
    ours = feature_store(tmp_path / "store", size_S, dim=4)
    vectors_VD = np.concatenate(list(feature_sets(size_S, dim=4)))
    x_BND, mask_BN = formats.loop(vectors_VD, np.array([0, 2, 7, 8, 11]))(rows)
    assert mask_BN.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert x_BND[1, :2].tolist() == vectors_VD[:2].tolist()
    assert all(map(torch.equal, ours.padded(rows), (x_BND, mask_BN)))


OTHERS = (formats.HDF5, formats.PREADV, other_formats.LMDB, other_formats.WEBDATASET, other_formats.LANCE)


@pytest.mark.parametrize("other", OTHERS, ids=lambda one: one.name)
def test_all_formats_hold_the_same_sets(tmp_path, other):
    if other.package:
        pytest.importorskip(other.package)
    size_S, row_KB, found = np.array([2, 5, 1, 3, 4]), [np.array([3, 0]), np.array([4, 1, 2])], []
    for one in (formats.STORE, other):
        cold.place(tmp_path, one).mkdir()
        one.write(cold.place(tmp_path, one), size_S, 4)
        batches = list(one.batches(cold.place(tmp_path, one), size_S, 4, row_KB))
        assert [len(x_BND) for x_BND, _ in batches] == [2, 3]
        found.append([x_BND[i][mask_BN[i]].tolist() for x_BND, mask_BN in batches for i in range(len(x_BND))])
    assert sorted(found[0]) == sorted(found[1])
    if other is not other_formats.WEBDATASET:  # which has an order of its own
        assert found[0] == found[1]


def test_a_format_that_is_not_installed_is_named():
    with pytest.raises(InputError, match="Nothing is not installed"):
        cold.against(dataclasses.replace(formats.HDF5, name="Nothing", package="no_such_package"), "tiny")


@pytest.mark.slow
def test_a_limit_holds_and_its_group_is_gone_afterwards():
    try:
        resident = memory_group.within(900, os.getpid)
    except InputError as error:
        pytest.skip(str(error))
    assert resident != os.getpid()
    groups = Path("/sys/fs/cgroup").rglob(f"polypool-{os.getpid()}")
    assert not list(groups)


def test_what_was_forgotten_is_read_from_the_disk_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    assert page_cache.resident(path) > 0.9
    try:
        page_cache.forget([path])
    except InputError as error:
        pytest.skip(str(error))
    assert page_cache.resident(path) == 0
    before = page_cache.read_from_disks()
    path.read_bytes()
    assert page_cache.read_from_disks() - before >= 1 << 20


@pytest.mark.parametrize(("name", "lacks"), [("AVX2", "__AVX512F__"), ("no AVX", "__AVX__")])
def test_code_has_no_wider_instructions_than_it_is_measured_with(name, lacks):
    command = ["cc", "-march=native", *sorted_sum.WITHOUT[name], "-dM", "-E", "-x", "c", os.devnull]
    if platform.machine() != "x86_64" or not shutil.which("cc"):
        pytest.skip("needs a C compiler for x86")
    defined = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert lacks not in defined
    assert ("__AVX2__" in defined) == (name == "AVX2" and "avx2" in Path("/proc/cpuinfo").read_text())


@pytest.mark.slow
def test_processes_with_fewer_instructions_leave_this_one_as_it_is(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    before = dict(os.environ)
    with sorted_sum._restricted("no AVX"):
        assert apart(torch.backends.cpu.get_cpu_capability, [()]) == ["DEFAULT"]
        assert Path(os.environ["XDG_CACHE_HOME"]).is_dir()
    assert os.environ == before


@pytest.mark.slow
def test_without_a_compiler_the_sorted_sum_is_not_measured(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="no C compiler"):
        list(sorted_sum.sorting("tiny"))


def test_a_sort_of_torchs_sums_the_same():
    x_BND = torch.tensor([[[1.0, 5.0], [3.0, 4.0], [9.0, 9.0]]], dtype=torch.float64)
    weight_BN, mask_BN = torch.tensor([[2.0, 1.0, 7.0]]), torch.tensor([[True, True, False]])
    assert sorted_sum.torch_sort(x_BND, weight_BN, mask_BN).tolist() == [[7.0, 14.0]]


def test_the_corpus_has_captions_of_about_twelve_words(tmp_path):
    caption_corpus(tmp_path, images=50, words=30)
    items = Corpus.open(tmp_path).items("train")
    lengths = [len(caption.split()) for item in items for caption in item.captions]
    assert (len(items), len(lengths)) == (50, 250)
    assert min(lengths) >= 8
    assert max(lengths) <= 16
    assert np.mean(lengths) == pytest.approx(12, abs=0.6)


def test_sorting_finds_the_same_ranks_as_counting():
    score_QG = np.array([[9, 1, 2, 3], [5, 6, 7, 8]], np.float32)
    owner_T = np.array([0, 0, 1, 1])
    assert ranks.argsort_images(score_QG, owner_T, np.arange(2)).tolist() == [0, 0]
    assert ranks.argsort_captions(score_QG, owner_T, np.arange(4)).tolist() == [0, 1, 0, 0]
    i2t_Q, t2i_G = ranks.rank_matrix(torch.from_numpy(score_QG))
    assert (i2t_Q.tolist(), t2i_G.tolist()) == ([0, 0], [0, 1, 0, 0])


def test_reranking_says_how_many_pairs_were_looked_at(monkeypatch):
    monkeypatch.setattr(first_pass, "PROBES", 2)
    (row,) = reranking.reranking("tiny")
    scored, all_pairs = map(int, re.search(r"scores (\d+) of (\d+) pairs", row.measured).groups())
    assert all_pairs == 6 * 30
    both_probes = 2 * 30 + 2 * 6 - 2 * 2
    assert both_probes < scored <= both_probes + 2 * (6 + 30)


def test_the_split_of_an_evaluation_has_the_images_of_the_protocol(tmp_path):
    size = evaluation.EvaluationSize(protocol="f30k-1k", images=1000, dim=4)
    adapter = evaluation.random_split(tmp_path, size)
    assert len(adapter.data("test").texts) == size.captions == 5000
    visual, text = (torch.eye(4).repeat(count // 4, 1) for count in (1000, 5000))
    score = SplitEmbeddings(visual=visual, text=text, similarity=SIMILARITIES.build("cosine"))
    found = adapter.evaluate_scores(score, "test", size.protocol)
    assert found.metrics["ties"] == 6000, "250 images and 1,250 captions are alike"


@pytest.mark.parametrize("held", [1, 12, 1000])
def test_all_vectors_are_multiplied(held, monkeypatch):
    visual_VD, text_TD = random_tensors((5, 3), (4, 3))
    parts, mm = [], torch.mm

    def noted(a, b, *, out):
        parts.append(mm(a, b, out=out).clone())

    monkeypatch.setattr(torch, "mm", noted)
    evaluation.products(visual_VD, text_TD, held=held)
    torch.testing.assert_close(torch.cat(parts), visual_VD @ text_TD.T)
    assert max(part.numel() for part in parts) <= max(held, 4)


@pytest.mark.slow
def test_what_grows_beyond_linear_is_seen():
    size = growth.GrowthSize(total=4096, elements=(36, 1024), width=8, rounds=1)
    ((micro_RS, byte_1S),) = apart(growth.an_element, [(Quadratic(size.width), size)])
    assert micro_RS.shape == (1, 2)
    own_S = byte_1S[0] - 2 * 4 * 8
    peak = 3 * 4 * 1024  # an element's sigmoids with 1,024 others, their gradients, and the products'
    assert 0.9 * peak < own_S[1] < 1.1 * peak  # Linux counts pages roughly
    row = growth._row("quadratic", "memory", "kB", byte_1S, size)
    assert row.ratio > growth.LINEAR
    assert "quadratic" in growth._beyond("memory", ["quadratic"], 3, size).measured


def test_the_page_is_as_slow_as_for_one_in_a_hundred(monkeypatch):
    waited_Q = np.r_[np.full(197, 0.5), 1.0, 3.0, math.inf]
    monkeypatch.setattr(page, "image_run", lambda *_, **__: None)
    monkeypatch.setattr(page, "serving", lambda run, serve: nullcontext(0))
    monkeypatch.setattr(page, "ask", lambda port, texts, patience: waited_Q[: len(texts)])
    unanswered, slow = page.page("full")
    assert (unanswered.ours, unanswered.ratio) == (5, 5 / 1000), "five rounds"
    assert unanswered.misses(), "one is too many"
    assert (slow.ours, slow.ratio) == (3.0, 1.5)
    assert slow.misses()


def test_those_who_are_not_answered_waited_for_ever():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert page.ask(closed.getsockname()[1], ["w1", "w2"], patience=5.0).tolist() == [math.inf] * 2


class NoResults(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"no results")

    def log_message(self, *_):
        pass


def test_a_page_without_results_is_no_answer():
    with HTTPServer(("127.0.0.1", 0), NoResults) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert page.ask(server.server_port, ["w1"], patience=30.0).tolist() == [math.inf]
        server.shutdown()
        thread.join()


def test_texts_differ_and_are_the_same_each_time():
    size = page.PageSize()
    texts = [page.text(size, number) for number in range(50)]
    assert texts == [page.text(size, number) for number in range(50)]
    assert len(set(texts)) == 50
    assert all(8 <= len(text.split()) <= 16 for text in texts)


def test_random_vectors_have_length_one_where_that_is_asked_for():
    one, other = random_tensors((3, 4), (2, 5, 4), unit=True)
    torch.testing.assert_close(one.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(other.norm(dim=-1), torch.ones(2, 5))
    assert not torch.equal(one[:2], other[0, :2])
    assert torch.equal(random_tensors((3, 4), unit=True)[0], one)
