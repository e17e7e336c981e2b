"""Random splits, and the counts of published splits."""

from collections import Counter

from polypool.tasks.datasets import splits as counts
from polypool.tasks.datasets.splits import MSRVTT, MSRVTT_1KA, RandomSplits, compare_counts


def test_published_split_counts_add_up():
    assert sum(counts.COCO.splits.values()) == 123_287
    assert counts.COCO.captions == 414_113 + 202_654  # train2014 and val2014
    assert sum(counts.FLICKR30K.splits.values()) == 31_014
    assert counts.FLICKR30K.captions == 5 * 31_014
    assert counts.FLICKR8K.captions == 5 * sum(counts.FLICKR8K.splits.values())
    assert sum(MSRVTT.splits.values()) == 10_000
    assert counts.VATEX.captions == 10 * sum(counts.VATEX.splits.values())
    assert [each.captions for each in counts.SCAN] == [5 * sum(each.splits.values()) for each in counts.SCAN]
    assert sum(sum(each.splits.values()) for each in counts.CXC.values()) == 267_095


def test_compare_counts_reports_match_or_difference():
    whole = {"train": 6513, "val": 497, "test": 2990}
    assert (
        compare_counts([MSRVTT], whole, captions=200_000)
        == "counts match the published ones: MSR-VTT, full splits"
    )
    assert compare_counts([MSRVTT], whole | {"test": 2989}, captions=199_980) == (
        "counts differ from the published ones (MSR-VTT, full splits): test 2,989 of 2,990 items, "
        "199,980 of 200,000 captions"
    )
    assert "val 0 of 497 items" in compare_counts([MSRVTT], {"train": 6513, "test": 2990}, captions=200_000)
    held_out = {"train": 6510, "val": 500, "test": 1000}
    assert compare_counts(MSRVTT_1KA, held_out, captions=141_200).endswith("1k-A with 7k training videos")
    told = compare_counts(MSRVTT_1KA, {"train": 8500, "val": 500, "test": 993}, captions=180_993)
    assert "1k-A with 9k training videos): test 993 of 1,000 items, 180,993 of 181,000 captions" in told


def test_random_split_depends_only_on_ids_and_seed():
    ids = [f"item {n}" for n in range(100)]

    def divide(ids, shares, *, seed):
        return RandomSplits(split=shares, seed=seed).divide(ids)

    splits = divide(ids, "80/10/10", seed=3)
    assert divide(reversed(ids), "80/10/10", seed=3) == splits != divide(ids, "80/10/10", seed=4)
    assert sorted(splits.values()).count("train") == 80
    tested = {id for id, split in splits.items() if split == "test"}
    assert len(tested) == 10
    wider = divide(ids, "70/20/10", seed=3)
    assert {id for id, split in wider.items() if split == "test"} == tested
    assert set(divide(ids, "1/0/0", seed=3).values()) == {"train"}
    assert sorted(divide("abc", "98/1/1", seed=0).values()) == ["test", "train", "val"]
    assert Counter(divide("abcdefghij", "80/10/10", seed=0).values()) == {"train": 6, "val": 2, "test": 2}
