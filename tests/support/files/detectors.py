"""Small detectors with random weights, saved in the format of transformers."""

from __future__ import annotations

from pathlib import Path

import torch

KINDS = {
    "detr": "DetrForObjectDetection",
    "rtdetr": "RTDetrForObjectDetection",
    "owlv2": "Owlv2ForObjectDetection",
}
"""The transformers class of each kind."""


def write_detector(kind: str, folder: Path) -> Path:
    """Save a model, whose boxes and scores differ between regions, and its preprocessing; return the folder."""
    import transformers as tf

    torch.manual_seed(0)
    model = getattr(tf, KINDS[kind])({"detr": _detr, "rtdetr": _rtdetr, "owlv2": _owlv2}[kind]())
    scrambled = {
        key: torch.randn_like(x) * (1.0 if kind == "detr" else 0.3) if x.dim() > 1 else x
        for key, x in model.state_dict().items()
        if x.is_floating_point()
    }
    model.load_state_dict(model.state_dict() | scrambled)
    model.save_pretrained(folder)
    square = {"height": 64, "width": 64} if kind == "rtdetr" else {"height": 32, "width": 32}
    processors = {
        "detr": lambda: tf.DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 80}),
        "rtdetr": lambda: tf.RTDetrImageProcessorPil(size=square),
        "owlv2": lambda: tf.Owlv2ImageProcessorPil(size=square),
    }
    processors[kind]().save_pretrained(folder)
    return folder


_HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
_SIZES = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 16, "num_labels": 4}
_STAGES = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 12], "depths": [1, 1, 1, 1]}


def _detr():
    import transformers as tf

    return tf.DetrConfig(
        backbone_config=tf.ResNetConfig(**_STAGES, out_features=["stage4"]),
        encoder_layers=1,
        decoder_layers=1,
        num_queries=9,
        **_HEADS,
        **_SIZES,
    )


def _rtdetr():
    import transformers as tf

    stages = tf.RTDetrResNetConfig(**_STAGES, layer_type="basic", out_features=["stage2", "stage3", "stage4"])
    return tf.RTDetrConfig(
        backbone_config=stages,
        encoder_in_channels=[8, 8, 12],
        encoder_hidden_dim=16,
        decoder_in_channels=[16, 16, 16],
        decoder_layers=2,
        num_queries=12,
        hidden_expansion=0.5,
        anchor_image_size=None,
        **_HEADS,
        **_SIZES,
    )


def _owlv2():
    import transformers as tf

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {"hidden_size": 12, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1} | sizes
    vision = {"hidden_size": 16, "image_size": 32, "patch_size": 8} | sizes
    return tf.Owlv2Config(text_config=text, vision_config=vision, projection_dim=12)
