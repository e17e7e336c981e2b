"""Tiny transformers models, saved in the real format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "dog",
    "run",
    "##ning",
    "the",
    "and",
    "one",
    "beside",
]
_SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def save_bert(folder: Path, *, positions: int = 64) -> str:
    """Save a BERT of width 8 with its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=positions, **_SMALL)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def save_vit(folder: Path) -> str:
    """Save a ViT of width 8 on 32 pixels."""
    from transformers import ViTConfig, ViTModel
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    config = ViTConfig(image_size=32, patch_size=16, **_SMALL)
    ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


def save_resnet(folder: Path) -> str:
    """Save a ResNet of 12 channels with its preprocessing."""
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 64}, crop_pct=0.875).save_pretrained(folder)
    return str(folder)


_LETTERS = "abcdefghijklmnopqrstuvwxyz.,!'"
_SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def save_clip(folder: Path, *, longest: int = 77, width: int = 12, layers: int = 2) -> str:
    """Save a CLIP of 16 channels on 32 pixels, with embeddings of size `width`, tokenizer and preprocessing."""
    import transformers as tf
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    ends, end = ["<|startoftext|>", "<|endoftext|>"], "</w>"
    pairs = ("d o", f"do g{end}", "t h", f"th e{end}", f"n d{end}", f"a nd{end}")
    merges = [tuple(pair.split()) for pair in pairs]
    pieces = [*ends, *_LETTERS, *(letter + end for letter in _LETTERS), *("".join(pair) for pair in merges)]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    split = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=ends[1], end_of_word_suffix=end))
    split.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    split.decoder = decoders.BPEDecoder(suffix=end)
    special = {"bos_token": ends[0], **dict.fromkeys(("eos_token", "unk_token", "pad_token"), ends[1])}
    words = tf.PreTrainedTokenizerFast(tokenizer_object=split, model_max_length=longest, **special)
    size = _SIZE | {"num_hidden_layers": layers}
    text = size | {"vocab_size": len(words), "max_position_embeddings": longest}
    text |= {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    vision = size | {"image_size": 32, "patch_size": 8}
    model = tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))
    cropped = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return _saved(folder, model, words, tf.CLIPImageProcessorPil(**cropped))


def save_siglip(folder: Path, *, longest: int = 64) -> str:
    """Save a SigLIP of width 16 on 32 pixels with a unigram tokenizer and preprocessing."""
    import transformers as tf
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<pad>", "</s>", "<unk>"]
    pieces = [*special, *_LETTERS, "\u2581", "\u2581the", "\u2581dog", "\u2581and", "ing"]
    scores = [0.0] * len(special) + [-len(pieces) / len(piece) for piece in pieces[len(special) :]]
    split = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=2))
    split.pre_tokenizer = pre_tokenizers.Metaspace()
    named = {"eos_token": special[1], "pad_token": special[1], "unk_token": special[2]}
    words = tf.PreTrainedTokenizerFast(tokenizer_object=split, model_max_length=longest, **named)
    text = _SIZE | {"vocab_size": len(words), "max_position_embeddings": longest}
    vision = _SIZE | {"image_size": 32, "patch_size": 8}
    model = tf.SiglipModel(tf.SiglipConfig(text_config=text, vision_config=vision))
    square = {"height": 32, "width": 32}
    return _saved(folder, model, words, tf.SiglipImageProcessorPil(size=square))


def _saved(folder: Path, model: Any, words: Any, pictures: Any) -> str:
    """Save a model, tokenizer and preprocessing; the random weights are large, so that embeddings differ."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(0)
    scrambled = {
        key: 0.3 * torch.randn(x.shape, generator=draw)
        for key, x in model.state_dict().items()
        if x.is_floating_point()
    }
    model.load_state_dict(model.state_dict() | scrambled)
    for part in (model, words, pictures):
        part.save_pretrained(folder)
    return str(folder)


def save_decoder(
    folder: Path, kind: str, *, starts: bool = False, ends: str = "", dtype: str = "float32"
) -> str:
    """Save a decoder of width 8 of a transformers `kind`, and a tokenizer with `[CLS]` and `[SEP]` for start and end.

    The tokenizer adds `[CLS]` in front if `starts`, and the token `ends` at the end.
    """
    import torch
    import transformers as tf
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    split = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    if starts or ends:
        added = [("[CLS]", WORDS.index("[CLS]")), (ends or "[SEP]", WORDS.index(ends or "[SEP]"))]
        form = f"{'[CLS] ' * starts}$A {ends}".strip()
        split.post_processor = processors.TemplateProcessing(single=form, special_tokens=added)
    words = tf.PreTrainedTokenizerFast(
        tokenizer_object=split, bos_token="[CLS]", eos_token="[SEP]", unk_token="[UNK]"
    )
    size = _SMALL | {"num_key_value_heads": 1, "head_dim": 4, "vocab_size": len(WORDS), "pad_token_id": 0}
    if kind == "gpt2":
        size = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": len(WORDS)}
    model = tf.AutoModel.from_config(tf.AutoConfig.for_model(kind, max_position_embeddings=64, **size))
    folder.mkdir(parents=True, exist_ok=True)
    for part in (model.to(getattr(torch, dtype)), words):
        part.save_pretrained(folder)
    return str(folder)
