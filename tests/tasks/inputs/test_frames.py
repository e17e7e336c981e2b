"""Frames of video files as visual encoder inputs, against loops over single frames."""

from functools import partial

import numpy as np
import pytest
import torch
from clips import decoded, write_clip
from PIL import Image
from tiny_models import save_vit

from polypool.encoders.visual.cnn import NETWORKS
from polypool.infra.compute.randomness import uniform
from polypool.infra.errors import InputError
from polypool.infra.files import sha256
from polypool.infra.registry import AUGMENTATIONS, ENCODERS, Spec
from polypool.tasks.inputs.visuals import Frames

COUNTS = (30, 2, 7)  # frames per clip
FRAMES = 4


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    return [write_clip(folder / f"{count}.mp4", count, seed=count) for count in COUNTS]


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return save_vit(tmp_path_factory.mktemp("vit"))


PARTS = {
    "patches(name={vit!r}, width=6, size=32, class_token=True)": 5,
    "cnn(name=tiny, width=6, size=64)": 4,
}
"""Encoders, and their number of elements per frame."""


@pytest.fixture(params=PARTS)
def part(request, vit, monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", {"depths": (1, 1, 1, 1), "base": 8})
    return (*built(request.param.format(vit=vit)), PARTS[request.param])


def built(spec: str):
    kind, params = ENCODERS.get(Spec.parse(spec).name), Spec.parse(spec).params
    assets = kind.prepare(**params)
    torch.manual_seed(0)
    return ENCODERS.build(spec, assets).eval(), kind.transform(assets, **params)


def draw(seed, sample, element, stream):
    return uniform(seed, stream, sample, element)


def read(data: Frames, *items: int, samples=None, seed=None):
    numbers = partial(draw, seed) if seed is not None else None
    return data.batch(np.array(items), sample_B=np.array(samples or items), draw=numbers)


@torch.no_grad()
def test_clip_batch_matches_frame_loop_and_ignores_padding(clips, part):
    encoder, transform, cells = part
    pixels, mask_BN = read(Frames(clips, frames=FRAMES, transform=transform), 0, 1, 2)
    assert pixels.shape == (3, FRAMES, 3, transform.size, transform.size)
    assert mask_BN.sum(dim=1).tolist() == [FRAMES * cells, 2 * cells, FRAMES * cells]
    x_BND, mask = encoder(pixels, mask_BN)
    assert torch.equal(mask, mask_BN)
    for clip, x_ND, mask_N in zip(clips, x_BND, mask_BN, strict=True):
        expected = []
        for x_HW3 in decoded(clip, at_most=FRAMES):
            image = torch.from_numpy(transform(Image.fromarray(x_HW3)))
            expected.append(encoder(image[None], torch.ones(1, cells, dtype=torch.bool))[0][0])
        torch.testing.assert_close(x_ND[mask_N], torch.cat(expected), rtol=1e-4, atol=1e-5)
    assert not pixels[1, 2:].any()
    pixels[1, 2:] = 1e3
    torch.testing.assert_close(encoder(pixels, mask_BN)[0][mask_BN], x_BND[mask_BN])


def test_each_clip_gets_one_crop_by_seed_and_sample(clips, vit):
    _, transform = built(f"patches(name={vit!r}, size=32)")
    drop = AUGMENTATIONS.build("drop(p=0.5)")
    data = Frames(clips, frames=FRAMES, transform=transform, augment=drop, threads=3)
    again = Frames(clips, frames=FRAMES, transform=transform, augment=drop, threads=1)
    pixels, mask_BN = read(data, 0, 1, 0, samples=[5, 6, 7], seed=3)
    for item, sample, row in ((0, 5, 0), (1, 6, 1), (0, 7, 2)):
        alone, mask_1N = read(again, item, samples=[sample], seed=3)
        assert torch.equal(pixels[row, : alone.shape[1]], alone[0])
        assert torch.equal(mask_BN[row, : mask_1N.shape[1]], mask_1N[0])
        u_4 = draw(3, np.array([[sample]]), np.arange(4), 2)[0]
        for frame, x_HW3 in enumerate(decoded(clips[item], at_most=FRAMES)):
            expected = transform(Image.fromarray(x_HW3), u_4)
            np.testing.assert_array_equal(alone[0, frame], expected)
    assert not torch.equal(pixels[0], pixels[2])  # the same clip for another caption
    assert not torch.equal(pixels, read(data, 0, 1, 0, samples=[5, 6, 7], seed=4)[0])
    assert 0 < mask_BN[1].sum() <= 2 * transform.cells < mask_BN.shape[1]


def test_bad_video_files_are_named_in_errors(clips, vit, tmp_path):
    _, transform = built(f"patches(name={vit!r}, size=32)")
    with pytest.raises(InputError, match=r"1 of 4 videos are missing, the first is .*gone\.mp4"):
        Frames([*clips, tmp_path / "gone.mp4"], frames=FRAMES, transform=transform)
    with pytest.raises(InputError, match=r"--data.max-frames 0 .* every frame"):
        Frames(clips, frames=0, transform=transform)
    clip = write_clip(tmp_path / "clip.mp4", 5)
    data = Frames([clip], frames=FRAMES, transform=transform, digests=[sha256(clip)])
    read(data, 0)
    write_clip(clip, 6)
    with pytest.raises(InputError, match=r"clip\.mp4: changed since it was ingested"):
        read(data, 0)
    clip.write_bytes(b"<html>404</html>")
    with pytest.raises(InputError, match=r"clip\.mp4: does not decode.*; replace the file, or ingest"):
        read(Frames([clip], frames=FRAMES, transform=transform), 0)
    clip.unlink()
    with pytest.raises(InputError, match=r"clip\.mp4: no such file"):
        read(data, 0)
