"""Tiny models of `transformers` with random weights, and their own answers to compare with."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from transformers import (
    PaddleOCRVLConfig,
    PaddleOCRVLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)
from transformers.models.paddleocr_vl import modeling_paddleocr_vl
from transformers.models.qwen3_5 import modeling_qwen3_5

from ocrquant.models.registry import build_model
from ocrquant.models.weights import MappingSource

VOCAB = 96


def qwen3_5_config(*, tied=False, bias=False):
    text = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=7,
        video_token_id=8,
        vision_start_token_id=5,
        vision_end_token_id=6,
        tie_word_embeddings=tied,
        architectures=["Qwen3_5ForConditionalGeneration"],
    )


def paddleocr_vl_config(*, tied=True, bias=False):
    text = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "use_bias": bias,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0, "mrope_section": [2, 3, 3]},
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": 56,
    }
    return PaddleOCRVLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=7,
        video_token_id=8,
        vision_start_token_id=5,
        vision_end_token_id=6,
        tie_word_embeddings=tied,
        architectures=["PaddleOCRVLForConditionalGeneration"],
    )


FAMILIES = {
    "qwen3_5": (qwen3_5_config, Qwen3_5ForConditionalGeneration),
    "paddleocr_vl": (paddleocr_vl_config, PaddleOCRVLForConditionalGeneration),
}


def make(family, dtype, seed=0, **options):
    """A model whose weights are exact in float32 and large enough for every term to matter."""
    make_config, kind = FAMILIES[family]
    torch.manual_seed(seed)
    model = kind(make_config(**options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "A_log" in name:
                continue
            scale = 0.3 if parameter.ndim < 2 else 1.5 / parameter[0].numel() ** 0.5
            noise = torch.randn_like(parameter) * scale
            parameter.copy_(noise + ("norm" in name and parameter.ndim == 1))
    return model.to(dtype)


def ours(model, *, text_only=True, max_rows=64, **options):
    """The same model here, from its tensors as they are."""
    config = model.config.to_dict()
    tensors = dict(model.state_dict())
    if text_only:
        del config["vision_config"]
        tensors = {n: t for n, t in tensors.items() if "visual" not in n and "projector" not in n}
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    source = MappingSource(tensors)
    return build_model(config, source, model.dtype, torch.device("cpu"), max_rows=max_rows, **options)


def prompt(length, seed=0, image=(3, 2, 4)):
    """Tokens with an image of 2 x 4 tokens from the third on, positions, and rows of the image."""
    start, rows, columns = image
    count = rows * columns
    tokens = torch.randint(9, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))
    tokens[start : start + count] = 7
    index = torch.full((length,), -1)
    index[start : start + count] = torch.arange(count)
    positions = torch.empty(3, length, dtype=torch.int64)
    positions[:, :start] = torch.arange(start)
    grid = torch.meshgrid(torch.arange(1), torch.arange(rows), torch.arange(columns), indexing="ij")
    positions[:, start : start + count] = torch.stack([axis.flatten() for axis in grid]) + start
    after = start + max(rows, columns)
    positions[:, start + count :] = torch.arange(after, after + length - start - count)
    return SimpleNamespace(tokens=tokens, positions=positions, index=index, count=count)


def logits(model, tokens, positions, index=None, images=None):
    """[T, vocab] of the whole sequence at once."""
    text = model.model.language_model
    embeddings = text.embed_tokens(tokens)
    if images is not None:
        embeddings = torch.where(index[:, None] >= 0, images[index.clamp(min=0)], embeddings)
    with torch.no_grad():
        hidden = text(inputs_embeds=embeddings[None], position_ids=positions[:, None]).last_hidden_state
        return model.lm_head(hidden)[0]


class _Float64Torch:
    """`torch` to a module that asks for float32."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


@contextmanager
def wholly_float64(model):
    """Lets a model in float64 stay there where its code goes to float32; angles of positions excepted."""
    real, rotary = torch.Tensor.float, model.model.language_model.rotary_emb
    hooks = [
        rotary.register_forward_pre_hook(lambda *_: setattr(torch.Tensor, "float", real)),
        rotary.register_forward_hook(lambda *_: setattr(torch.Tensor, "float", torch.Tensor.double)),
    ]
    with (
        mock.patch.object(modeling_qwen3_5, "torch", _Float64Torch()),
        mock.patch.object(modeling_paddleocr_vl, "torch", _Float64Torch()),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield
    for hook in hooks:
        hook.remove()
