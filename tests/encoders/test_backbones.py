from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import MODES, noise
from PIL import Image
from safetensors.torch import load_file, save_file

from polypool.encoders.backbones.hub import from_hub
from polypool.infra.errors import InputError
from polypool.infra.pictures.opening import rgb
from polypool.infra.registry import BACKBONES


def test_transparency_is_white_and_sixteen_bits_become_eight():
    assert rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    assert rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 255))).getpixel((0, 0)) == (255, 0, 0)
    assert rgb(Image.new("I;16", (1, 1), 0x8123)).getpixel((0, 0)) == (0x81,) * 3
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([10, 20, 30])
    assert rgb(palette).getpixel((0, 0)) == (10, 20, 30)
    palette.info["transparency"] = 0
    assert rgb(palette).getpixel((0, 0)) == (255, 255, 255)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 32}).save_pretrained(folder)
    return folder


TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.fixture(scope="module")
def towers(tmp_path_factory) -> dict[str, Path]:
    """Tiny CLIP, SigLIP and DINOv2 models, the first two with their text half, as on the hub."""
    import transformers as tf

    root = tmp_path_factory.mktemp("towers")
    torch.manual_seed(0)
    vision = TINY | {"intermediate_size": 32}
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text |= {"vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1}
    square = {"height": 32, "width": 32}
    cropped = {"size": {"shortest_edge": 32}, "crop_size": square}
    models = {
        "clip": tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)),
        "siglip": tf.SiglipModel(tf.SiglipConfig(text_config=text, vision_config=vision)),
        "dinov2": tf.Dinov2Model(tf.Dinov2Config(**TINY)),
        "registers": tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**TINY)),
    }
    processors = {
        "clip": tf.CLIPImageProcessorPil(**cropped),
        "siglip": tf.SiglipImageProcessorPil(size=square),
        "dinov2": tf.BitImageProcessorPil(**cropped),
        "registers": tf.BitImageProcessorPil(**cropped),
    }
    for name, model in models.items():
        scrambled = {
            key: torch.randn_like(x) * 0.2 for key, x in model.state_dict().items() if x.is_floating_point()
        }
        model.load_state_dict(model.state_dict() | scrambled)
        model.save_pretrained(root / name)
        processors[name].save_pretrained(root / name)
    return {name: root / name for name in models}


@pytest.mark.parametrize(
    ("name", "kind", "before"),
    [("clip", "clip", 1), ("siglip", "siglip", 0), ("dinov2", "dinov2", 1), ("registers", "dinov2", 5)],
)
def test_towers_give_the_patches_of_their_last_layer(towers, name, kind, before):
    from transformers import AutoImageProcessor, AutoModel

    image, folder = noise(), towers[name]
    whole = AutoModel.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        pixels = processor([image], return_tensors="pt")["pixel_values"]
        tokens = getattr(whole, "vision_model", whole)(pixels).last_hidden_state[0].numpy()
    assert len(tokens) == before + 16
    backbone = BACKBONES.build(f"{kind}(name={str(folder)!r})")
    (x_ND,) = backbone([image])
    assert (x_ND.shape, backbone.dim, x_ND.dtype) == ((16, 16), 16, np.float32)
    np.testing.assert_allclose(x_ND, tokens[before:], rtol=1e-4, atol=1e-5)
    assert (backbone.describe()["backbone"], backbone.describe()["cls"]) == (kind, False)
    if before:
        (with_cls_ND,) = BACKBONES.build(f"{kind}(name={str(folder)!r}, cls=True)")([image])
        np.testing.assert_allclose(with_cls_ND, np.concatenate([tokens[:1], x_ND]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 6])
def test_patches_are_averaged_over_a_grid_of_cells(towers, grid):
    image, name = noise(), str(towers["dinov2"])
    (all_ND,) = BACKBONES.build(f"dinov2(name={name!r}, cls=True)")([image])
    backbone = BACKBONES.build(f"dinov2(name={name!r}, cls=True, grid={grid})")
    (x_ND,) = backbone([image])
    patch_DRC = torch.tensor(all_ND[1:]).T.reshape(16, 4, 4)
    cell_ND = torch.nn.functional.adaptive_avg_pool2d(patch_DRC, grid).flatten(1).T
    np.testing.assert_allclose(x_ND, np.concatenate([all_ND[:1], cell_ND]), rtol=1e-5, atol=1e-6)
    assert backbone.describe()["grid"] == grid


def test_a_backbone_computes_in_bfloat16_on_request_and_says_so(towers):
    image, name = noise(), str(towers["dinov2"])
    full, half = (BACKBONES.build(f"dinov2(name={name!r}{more})") for more in ("", ", bfloat16=True"))
    (x_ND,), (rounded_ND,) = full([image]), half([image])
    assert rounded_ND.dtype == np.float32
    assert 0 < np.abs(rounded_ND - x_ND).max() < 0.1 * np.abs(x_ND).max()
    assert half.describe()["bfloat16"] is True
    assert "bfloat16" not in full.describe(), "older stores still fit"


@pytest.mark.parametrize(("flag", "slow"), [("avx512_f", True), ("avx512_bf16", False), ("bf16", False)])
def test_a_machine_without_bfloat16_is_told_that_it_is_slow(towers, monkeypatch, flag, slow):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True}, raising=False)
    name = str(towers["dinov2"])
    full, half = (BACKBONES.build(f"dinov2(name={name!r}{more})") for more in ("", ", bfloat16=True"))
    assert not full.note
    assert ("slower" in half.note) == slow


def test_a_grid_without_cells_is_refused(towers):
    with pytest.raises(InputError, match="grid must be at least 1, not 0"):
        BACKBONES.build(f"siglip(name={str(towers['siglip'])!r}, grid=0)")


def test_towers_take_images_of_every_mode_and_size(towers):
    images = [Image.new(mode, size) for mode in MODES for size in [(1, 1), (3, 40)]]
    for kind in ("clip", "siglip", "dinov2"):
        features = BACKBONES.build(f"{kind}(name={str(towers[kind])!r})")(images)
        assert {x_ND.shape for x_ND in features} == {(16, 16)}
        assert all(np.isfinite(x_ND).all() for x_ND in features)


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_a_tower_of_another_kind_is_refused(towers, vit, kind):
    for other in [vit, *(towers[name] for name in ("clip", "siglip", "dinov2") if name != kind)]:
        with pytest.raises(InputError, match=other.name):
            BACKBONES.build(f"{kind}(name={str(other)!r})")


def test_siglip_has_no_class_token_to_ask_for(towers):
    with pytest.raises(InputError, match="unknown parameter of backbone 'siglip': 'cls'"):
        BACKBONES.build(f"siglip(name={str(towers['siglip'])!r}, cls=True)")


def test_vit_gives_the_patches_and_on_request_the_class_token(vit):
    from transformers import ViTImageProcessorPil, ViTModel

    image = noise()
    pixels = ViTImageProcessorPil.from_pretrained(vit)([image], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = ViTModel.from_pretrained(vit).eval()(pixels).last_hidden_state[0].numpy()
    patches, whole = (BACKBONES.build(f"vit(name={str(vit)!r}, cls={cls})") for cls in (False, True))
    assert patches.dim == 16
    np.testing.assert_allclose(patches([image])[0], expected[1:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole([image])[0], expected, rtol=1e-4, atol=1e-5)
    assert patches([image])[0].dtype == np.float32


def test_resnet_gives_the_cells_of_the_last_map(resnet):
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


def test_resnet_squeezes_the_whole_image_where_a_size_is_given(resnet):
    backbone = BACKBONES.build(f"resnet(name={str(resnet)!r}, size=64)")
    border = Image.new("RGB", (80, 80))
    border.paste((255, 255, 255), (0, 0, 80, 4))  # the model's own preprocessing would cut this off
    plain, marked = backbone([Image.new("RGB", (80, 80)), border])
    assert plain.shape == (64, 12)
    assert np.abs(plain - marked)[:8].max() > 1e-3


def test_images_of_every_mode_and_size_go_through_one_batch(vit, resnet):
    images = [Image.new(mode, size) for mode in MODES for size in [(1, 1), (3, 40), (40, 3)]]
    for spec, cells in ((f"vit(name={str(vit)!r})", 16), (f"resnet(name={str(resnet)!r})", 16)):
        assert {x_ND.shape[0] for x_ND in BACKBONES.build(spec)(images)} == {cells}


def test_images_whose_preprocessed_sizes_differ(resnet, tmp_path):
    from transformers import ViTImageProcessorPil

    copy(resnet, tmp_path)
    ViTImageProcessorPil(do_resize=False).save_pretrained(tmp_path)
    backbone = BACKBONES.build(f"resnet(name={str(tmp_path)!r})")
    small, large = backbone([noise(32, 32), noise(64, 32)])
    assert (len(small), len(large)) == (16, 32)


def test_the_description_names_the_weights(vit, tmp_path):
    spec = "vit(name={!r})"
    first = BACKBONES.build(spec.format(str(vit))).describe()
    assert first["name"] == vit.name
    assert first == BACKBONES.build(spec.format(str(vit))).describe()
    weights = load_file(vit / "model.safetensors")
    weights["layernorm.bias"] += 1
    copy(vit, tmp_path)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert first["sha256"] != BACKBONES.build(spec.format(str(tmp_path))).describe()["sha256"]


def copy(source: Path, target: Path) -> None:
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def without_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")  # a pickle: never read
    (folder / "model.safetensors").unlink()


def with_cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def with_missing_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_other_shapes(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["layernorm.weight"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def without_preprocessing(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def with_cut_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "vi')


@pytest.mark.parametrize(
    "damage",
    [
        without_weights,
        with_cut_weights,
        with_missing_weights,
        with_other_shapes,
        without_preprocessing,
        with_cut_config,
    ],
)
def test_a_damaged_folder_is_one_clear_message(vit, tmp_path, damage):
    copy(vit, tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors and preprocessor_config\.json") as error:
        BACKBONES.build(f"vit(name={str(tmp_path)!r})")
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_of_another_kind_is_refused(vit, resnet):
    with pytest.raises(InputError, match="expected a vision transformer"):
        BACKBONES.build(f"vit(name={str(resnet)!r})")
    with pytest.raises(InputError, match="expected a ResNet"):
        BACKBONES.build(f"resnet(name={str(vit)!r})")


def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        BACKBONES.build(f"vit(name={str(tmp_path / 'none')!r})")


def test_without_a_connection_the_message_says_what_to_do(monkeypatch, tmp_path):
    from huggingface_hub import constants
    from transformers import AutoModel

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="HF_HOME") as error:
        from_hub(AutoModel, "google/vit-base-patch16-224")
    assert "local folder with config.json" in str(error.value)
