"""The families of document models: a row each says where its parts lie, what its layers are and how it reads.

Names are those of modules in `transformers`; checkpoints that were published under other names have them in
`namings`. Needs neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ocrquant.adapters.parts import (
    ATTENTION,
    FUSED_MLP,
    GATED_DELTA_NET,
    MLP,
    SANDWICH,
    Layer,
    sparse_mlp,
)
from ocrquant.errors import ModelError

__all__ = ["FAMILIES", "Family", "ImageKind", "Naming", "vision_modules"]

Naming = tuple[tuple[str, str], ...]
"""Prefixes of names on disk, each with that of the same modules in memory; the first that fits counts."""

ImageKind = Literal["patches", "square", "tiles", "rows", "sizes", "views"]
"""How an image becomes tokens; see `ocrquant.adapters.images`."""

Layers = Callable[[Mapping[str, Any]], list[Layer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        layers: Configuration of the decoder -> its layers in their order.
        vision: Modules of vision encoder and projector: never touched.
        decoder: Module with embedding, layers and final norm.
        head: The language-model head.
        namings: How checkpoints name the modules; the first is that of `transformers`.
        flat: Whether published configurations state the decoder at the top instead of under `text_config`.
        norm_offset: Whether norms multiply by 1 + w.
        images: How an image becomes tokens.
        image_processor: Class of `transformers` that works without torchvision, as ``module:class``.
        grid_positions: Whether image tokens have places in a grid (M-RoPE) instead of one after another.
        template: Prompt of a model that has no chat template, with ``{image}`` and ``{prompt}``.
    """

    layers: Layers
    vision: tuple[str, ...]
    decoder: str = "model.language_model"
    head: str = "lm_head"
    namings: tuple[Naming, ...] = ((),)
    flat: bool = False
    norm_offset: bool = False
    images: ImageKind
    image_processor: str
    grid_positions: bool = False
    template: str = ""


def _all(layer: Layer) -> Layers:
    return lambda text: [layer] * int(text["num_hidden_layers"])


def _mixers(text: Mapping[str, Any]) -> list[Layer]:
    """Qwen3.5: three of four layers are Gated DeltaNet (arXiv 2412.06464)."""
    table = {"linear_attention": GATED_DELTA_NET, "full_attention": ATTENTION}
    every = int(text.get("full_attention_interval", 4))
    kinds = text.get("layer_types") or [
        "full_attention" if (i + 1) % every == 0 else "linear_attention"
        for i in range(text["num_hidden_layers"])
    ]
    return [table[_known(kind, table)] for kind in kinds]


def _known(kind: str, table: Mapping[str, object]) -> str:
    if kind not in table:
        raise ModelError(
            "text_config.layer_types in config.json",
            expected=" or ".join(table),
            given=kind,
            fix="take another model: this kind of layer is not supported",
        )
    return kind


def _qwen3_5(text: Mapping[str, Any]) -> list[Layer]:
    text["head_dim"]  # no default fits: a configuration without it is damaged
    return [mixer.with_mlp(MLP) for mixer in _mixers(text)]


def _qwen3_5_moe(text: Mapping[str, Any]) -> list[Layer]:
    sparse = sparse_mlp("shared_expert", shared_gate=True)
    return [mixer.with_mlp(sparse) for mixer in _mixers(text)]


def _qwen3_vl_moe(text: Mapping[str, Any]) -> list[Layer]:
    dense, step = set(text.get("mlp_only_layers") or ()), int(text.get("decoder_sparse_step", 1))
    sparse = sparse_mlp("", shared_gate=False)
    return [
        ATTENTION.with_mlp(MLP if i in dense or (i + 1) % step else sparse)
        for i in range(text["num_hidden_layers"])
    ]


def _deepseek_ocr2(text: Mapping[str, Any]) -> list[Layer]:
    first = int(text.get("first_k_dense_replace", 1))
    kinds = text.get("mlp_layer_types") or [
        "dense" if i < first else "sparse" for i in range(text["num_hidden_layers"])
    ]
    table = {"dense": MLP, "sparse": sparse_mlp("shared_experts", shared_gate=False)}
    return [ATTENTION.with_mlp(table[_known(kind, table)]) for kind in kinds]


def _glm_ocr(text: Mapping[str, Any]) -> list[Layer]:
    layer = ATTENTION.with_mlp(FUSED_MLP)
    return [Layer(layer.parts, (*layer.others, *SANDWICH))] * int(text["num_hidden_layers"])


_DENSE = _all(ATTENTION.with_mlp(MLP))
_QWEN2: Naming = (("visual", "model.visual"), ("model", "model.language_model"))
_PADDLE: Naming = (("mlp_AR", "model.projector"), *_QWEN2)
_LLAVA: Naming = (
    ("language_model.lm_head", "lm_head"),
    ("language_model.model", "model.language_model"),
    ("vision_tower", "model.vision_tower"),
    ("multi_modal_projector", "model.multi_modal_projector"),
)
_DEEPSEEK: Naming = tuple(
    (f"model.{name}", f"model.language_model.{name}") for name in ("embed_tokens", "layers", "norm")
)
_QWEN_IMAGES = "qwen2_vl.image_processing_pil_qwen2_vl:Qwen2VLImageProcessorPil"
_GLM_IMAGES = "glm4v.image_processing_pil_glm4v:Glm4vImageProcessorPil"
_GOT_IMAGES = "got_ocr2.image_processing_pil_got_ocr2:GotOcr2ImageProcessorPil"
_VISUAL = ("model.visual",)
_TOWER = ("model.vision_tower", "model.multi_modal_projector")
_IDEFICS = ("model.vision_model", "model.connector")

FAMILIES: Mapping[str, Family] = {
    "Qwen3_5ForConditionalGeneration": Family(
        layers=_qwen3_5,
        vision=_VISUAL,
        norm_offset=True,
        images="patches",
        image_processor=_QWEN_IMAGES,
        grid_positions=True,
    ),
    "Qwen3_5MoeForConditionalGeneration": Family(
        layers=_qwen3_5_moe,
        vision=_VISUAL,
        norm_offset=True,
        images="patches",
        image_processor=_QWEN_IMAGES,
        grid_positions=True,
    ),
    "Qwen3VLForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_VISUAL,
        images="patches",
        image_processor=_QWEN_IMAGES,
        grid_positions=True,
    ),
    "Qwen3VLMoeForConditionalGeneration": Family(
        layers=_qwen3_vl_moe,
        vision=_VISUAL,
        images="patches",
        image_processor=_QWEN_IMAGES,
        grid_positions=True,
    ),
    "Qwen2_5_VLForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_VISUAL,
        namings=((), _QWEN2),
        flat=True,
        images="patches",
        image_processor=_QWEN_IMAGES,
        grid_positions=True,
    ),
    "PaddleOCRVLForConditionalGeneration": Family(
        layers=_DENSE,
        vision=("model.visual", "model.projector"),
        namings=((), _PADDLE),
        flat=True,
        images="patches",
        image_processor="paddleocr_vl.image_processing_pil_paddleocr_vl:PaddleOCRVLImageProcessorPil",
        grid_positions=True,
    ),
    "GlmOcrForConditionalGeneration": Family(
        layers=_glm_ocr,
        vision=_VISUAL,
        images="patches",
        image_processor=_GLM_IMAGES,
        grid_positions=True,
    ),
    "LightOnOcrForConditionalGeneration": Family(
        layers=_DENSE,
        vision=("model.vision_encoder", "model.vision_projection"),
        images="sizes",
        image_processor="pixtral.image_processing_pil_pixtral:PixtralImageProcessorPil",
    ),
    "DeepseekOcr2ForConditionalGeneration": Family(
        layers=_deepseek_ocr2,
        vision=(*_TOWER, "model.sam_model", "model.qwen2_model", "model.projector"),
        namings=((), _DEEPSEEK),
        flat=True,
        images="views",
        image_processor="deepseek_ocr2.image_processing_pil_deepseek_ocr2:DeepseekOcr2ImageProcessorPil",
        template="{image}\n{prompt}",
    ),
    "GotOcr2ForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_TOWER,
        namings=((), _LLAVA),
        images="square",
        image_processor=_GOT_IMAGES,
        template=(
            "<|im_start|>system\nYou should follow the instructions carefully and explain your answers in"
            " detail.<|im_end|><|im_start|>user\n<img>{image}</img>\n{prompt}<|im_end|>"
            "<|im_start|>assistant\n"
        ),
    ),
    "InternVLForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_TOWER,
        namings=((), _LLAVA),
        images="tiles",
        image_processor=_GOT_IMAGES,
    ),
    "Idefics3ForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_IDEFICS,
        decoder="model.text_model",
        images="rows",
        image_processor="idefics3.image_processing_pil_idefics3:Idefics3ImageProcessorPil",
    ),
    "SmolVLMForConditionalGeneration": Family(
        layers=_DENSE,
        vision=_IDEFICS,
        decoder="model.text_model",
        images="rows",
        image_processor="smolvlm.image_processing_pil_smolvlm:SmolVLMImageProcessorPil",
    ),
}
"""Class name of the Hugging Face model -> its family."""


def vision_modules(architecture: str) -> tuple[str, ...]:
    """Modules of the vision side as `transformers` calls them; none for an architecture that is not known."""
    family = FAMILIES.get(architecture)
    return () if family is None else family.vision
