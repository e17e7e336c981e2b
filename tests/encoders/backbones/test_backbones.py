import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import MODES, noise
from PIL import Image
from skimage.color import rgb2lab

from polypool.encoders.backbones import recorded_spec
from polypool.encoders.backbones.cells import Cells
from polypool.infra.errors import InputError
from polypool.infra.registry import BACKBONES
from polypool.infra.spec import Spec


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 32}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["vit", "clip", "siglip", "dinov2", "registers"])
@pytest.mark.parametrize(
    ("layers", "numbers"), [("1", [2]), ("2", [2, 1]), ("'1'", [1]), ("'2'", [2]), ("'1, 2'", [1, 2])]
)
def test_layers_option_takes_count_or_list(towers, name, layers, numbers):
    from transformers import AutoImageProcessor, AutoModel

    image, folder = noise(), towers[name]
    kind = "dinov2" if name == "registers" else name
    spec = f"{kind}(name={str(folder)!r}, layers={layers}"
    backbone = BACKBONES.build(f"{spec})")
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor([image], return_tensors="pt")["pixel_values"]
    whole = AutoModel.from_pretrained(folder).eval()
    vision = getattr(whole, "vision_model", whole)
    with torch.no_grad():
        made = vision(pixels, output_hidden_states=True)
        norm = {"clip": torch.nn.Identity(), "siglip": getattr(vision, "post_layernorm", None)}.get(kind)
        first = (norm or vision.layernorm)(made.hidden_states[1])
    token_LND = [{1: first, 2: made.last_hidden_state}[number][0].numpy() for number in numbers]
    patches = [token_ND[-16:] for token_ND in token_LND]
    (x_ND,) = backbone([backbone.prepare(image)])
    np.testing.assert_allclose(x_ND, np.concatenate(patches, axis=1), rtol=1e-4, atol=1e-5)
    assert (x_ND.shape[1], x_ND.dtype) == (backbone.dim, np.float32)
    cls = "" if kind == "siglip" else ", cls=True"
    stacked = BACKBONES.build(f"{spec}, grid=1, stack=True{cls})")
    (x_ND,) = stacked([image])
    elements = [[*token_ND[: bool(cls)], token_ND[-16:].mean(0)] for token_ND in token_LND]
    np.testing.assert_allclose(x_ND, np.concatenate(elements), rtol=1e-4, atol=1e-5)
    assert stacked.dim == 16
    recorded = Spec.parse(recorded_spec(stacked.describe(), where="manifest.json"))
    assert recorded.params.get("layers", 1) == Spec.parse(f"a(b={layers.replace(' ', '')})").params["b"]
    assert (recorded.name, recorded.params.get("cls", False)) == (kind, bool(cls))
    assert recorded.params["stack"] is True


@pytest.mark.parametrize("layers", ["0", "-1", "3", "'0'", "'3'", "'a'", "'1,1'", "''", "None", "1.5"])
def test_invalid_layers_are_refused_with_valid_range(towers, layers):
    with pytest.raises(InputError, match=r"has layers 1 to 2: .*, not " + re.escape(layers)):
        BACKBONES.build(f"dinov2(name={str(towers['dinov2'])!r}, layers={layers})")


@pytest.mark.parametrize("grid", [1, 3, 6])
def test_patches_are_averaged_over_grid_cells(towers, grid):
    image, name = noise(), str(towers["dinov2"])
    (all_ND,) = BACKBONES.build(f"dinov2(name={name!r}, cls=True)")([image])
    backbone = BACKBONES.build(f"dinov2(name={name!r}, cls=True, grid={grid})")
    (x_ND,) = backbone([image])
    patch_DRC = torch.tensor(all_ND[1:]).T.reshape(16, 4, 4)
    cell_ND = torch.nn.functional.adaptive_avg_pool2d(patch_DRC, grid).flatten(1).T
    np.testing.assert_allclose(x_ND, np.concatenate([all_ND[:1], cell_ND]), rtol=1e-5, atol=1e-6)
    assert backbone.describe()["grid"] == grid


def test_bfloat16_backbone_records_its_precision(towers):
    image, name = noise(), str(towers["dinov2"])
    full, half = (BACKBONES.build(f"dinov2(name={name!r}{more})") for more in ("", ", bfloat16=True"))
    (x_ND,), (rounded_ND,) = full([image]), half([image])
    assert rounded_ND.dtype == np.float32
    assert 0 < np.abs(rounded_ND - x_ND).max() < 0.1 * np.abs(x_ND).max()
    assert half.describe()["bfloat16"] is True
    assert "bfloat16" not in full.describe(), "float32 must not be recorded, so that older stores still match"


def test_resnet_returns_cells_of_last_map(resnet):
    from transformers import ConvNextImageProcessorPil, ResNetModel

    image = noise()
    pixels = ConvNextImageProcessorPil.from_pretrained(resnet)([image], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        map_DHW = ResNetModel.from_pretrained(resnet).eval()(pixels).last_hidden_state[0].numpy()
    backbone = BACKBONES.build(f"resnet(name={str(resnet)!r})")
    (x_ND,) = backbone([image])
    assert x_ND.shape == (map_DHW[0].size, backbone.dim) == (16, 12)
    np.testing.assert_allclose(x_ND[1], map_DHW[:, 0, 1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(x_ND[4], map_DHW[:, 1, 0], rtol=1e-4, atol=1e-5)


def test_resnet_size_option_resizes_without_cropping(resnet):
    backbone = BACKBONES.build(f"resnet(name={str(resnet)!r}, size=64)")
    border = Image.new("RGB", (80, 80))
    border.paste((255, 255, 255), (0, 0, 80, 4))  # the model's own preprocessing would crop this
    plain, marked = backbone([Image.new("RGB", (80, 80)), border])
    assert plain.shape == (64, 12)
    assert np.abs(plain - marked)[:8].max() > 1e-3


@pytest.mark.parametrize("kind", ["vit", "clip", "siglip", "dinov2", "resnet"])
def test_one_batch_mixes_image_modes_and_sizes(towers, resnet, kind):
    images = [Image.new(mode, size) for mode in MODES for size in [(1, 1), (3, 40), (40, 3)]]
    features = BACKBONES.build(f"{kind}(name={str((towers | {'resnet': resnet})[kind])!r})")(images)
    assert {len(x_ND) for x_ND in features} == {16}
    assert all(np.isfinite(x_ND).all() for x_ND in features)


MEAN, DEVIATION, EDGES = slice(0, 3), slice(3, 6), slice(6, 14)
COVARIANCE, TEXTURE, CONTRAST, PLACE = slice(14, 17), slice(17, 27), slice(27, 41), slice(41, 43)


def halves(left: tuple[int, int, int], right: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (64, 64), left)
    image.paste(right, (32, 0, 64, 64))
    return image


def test_cells_colour_moments_match_numpy():
    cells = Cells(grid=2, pixels=8)
    image = noise(16, 16)
    (x_ND,) = cells([image])
    lab_PC = rgb2lab(np.asarray(image))[8:, :8].reshape(-1, 3)  # row 1, column 0
    np.testing.assert_allclose(x_ND[2, MEAN], lab_PC.mean(0), rtol=1e-5)
    np.testing.assert_allclose(x_ND[2, DEVIATION], lab_PC.std(0), rtol=1e-5)
    expected = np.cov(lab_PC.T, bias=True)[[0, 0, 1], [1, 2, 2]] / 10
    np.testing.assert_allclose(x_ND[2, COVARIANCE], expected, rtol=1e-4)


def test_cells_are_row_major_and_include_position():
    (x_ND,) = Cells(grid=4)([halves((0, 0, 0), (255, 255, 255))])
    light_GG = x_ND[:, 0].reshape(4, 4)
    assert (light_GG[:, :2] < 1).all()
    assert (light_GG[:, 2:] > 99).all()
    np.testing.assert_allclose(x_ND[:, PLACE][[0, 3, 12]], [[-1, -1], [-1, 1], [1, -1]])
    assert (Cells(grid=1)([noise()])[0][:, PLACE] == 0).all()


@pytest.mark.parametrize(("across", "expected"), [(True, 0), (False, 4)])
def test_edges_fall_into_the_bin_of_their_direction(across, expected):
    wave = np.tile(128 + 100 * np.sin(np.arange(96) / 3), (96, 1)).astype(np.uint8)
    image = Image.fromarray(wave if across else wave.T)
    (x_ND,) = Cells(grid=2, pixels=48)([image])
    energy = x_ND[:, EDGES] ** 2
    assert (energy[:, expected] > 0.99 * energy.sum(axis=1)).all()


def test_squared_texture_features_sum_to_one():
    (x_ND,) = Cells()([noise()])
    np.testing.assert_allclose((x_ND[:, TEXTURE] ** 2).sum(axis=1), 1, rtol=1e-5)


def test_contrast_subtracts_mean_of_surrounding_cells():
    (x_ND,) = Cells(grid=7)([noise()])
    around = x_ND[:, MEAN].reshape(7, 7, 3)[0:5, 0:5].mean(axis=(0, 1))  # about row 2, column 2
    np.testing.assert_allclose(x_ND[16, CONTRAST][:3], x_ND[16, MEAN] - around, rtol=1e-3, atol=1e-3)
