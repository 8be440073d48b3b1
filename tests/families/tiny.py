"""Configurations of tiny models, one a family, and what their folders hold besides weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import transformers
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

VOCAB = 320
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
MROPE = {**ROPE, "mrope_section": [8, 4, 4]}
# As Qwen publishes it since Qwen3-VL: transformers interleaves those whatever is said, vLLM only if told.
INTERLEAVED = {**MROPE, "mrope_interleaved": True}
QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}
GDN = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    # vLLM on a CPU has none narrower.
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


@dataclass(frozen=True)
class Tiny:
    """A tiny model of a family.

    Attributes:
        architecture: Class name of the model.
        config: Token -> id gives the configuration.
        images: Makes the image processor.
        tokens: Special tokens beyond those of the tests' tokenizer.
        image: What a chat template writes for an image; none where the model has no chat template.
        experts: How published folders hold those of a layer: each by itself, as one tensor, or as one tensor
            with rows and columns exchanged.
    """

    architecture: str
    config: Callable[[dict[str, int]], Any]
    images: Callable[[], Any]
    tokens: tuple[str, ...] = ()
    image: str | None = "<|image_pad|>"
    experts: Literal["apart", "stacked", "turned"] = "apart"


def _config(name: str, text: dict[str, Any], vision: dict[str, Any], **others: Any) -> Any:
    kind = getattr(transformers, name)
    return kind(text_config=text, vision_config=vision, tie_word_embeddings=False, **others)


def _qwen(name: str, text: dict[str, Any], vision: dict[str, Any]) -> Callable[[dict[str, int]], Any]:
    def make(ids: dict[str, int]) -> Any:
        return _config(
            name,
            {**TEXT, **text},
            {**QWEN_VISION, **vision},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
        )

    return make


def _glm(ids: dict[str, int]) -> Any:
    vision = {k: v for k, v in QWEN_VISION.items() if k != "num_position_embeddings"}
    # The merger of the vision side is three hidden widths wide in transformers, as wide as this MLP in vLLM,
    # which cuts off in silence what is wider; in the published model both are one number.
    text = {
        **TEXT,
        "intermediate_size": 3 * TEXT["hidden_size"],
        "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0},
    }
    return _config(
        "GlmOcrConfig",
        text,
        {**vision, "image_size": 64, "out_hidden_size": 64},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        image_start_token_id=ids["<|vision_start|>"],
        image_end_token_id=ids["<|vision_end|>"],
    )


def _paddle(ids: dict[str, int]) -> Any:
    vision = {**SIGLIP, "patch_size": 14, "image_size": 56, "spatial_merge_size": 2}
    return _config(
        "PaddleOCRVLConfig",
        {**TEXT, "rope_parameters": MROPE, "use_bias": False},
        vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _lighton(ids: dict[str, int]) -> Any:
    vision = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
        "image_size": 128,
        "patch_size": 8,
    }
    text = {**TEXT, "model_type": "qwen3", "rope_parameters": ROPE}
    return _config("LightOnOcrConfig", text, vision, image_token_id=ids["<|image_pad|>"])


def _idefics(name: str) -> Callable[[dict[str, int]], Any]:
    def make(ids: dict[str, int]) -> Any:
        text = {**TEXT, "model_type": "llama", "rope_parameters": ROPE}
        return _config(name, text, SIGLIP, image_token_id=ids["<image>"], scale_factor=2)

    return make


def _got(ids: dict[str, int]) -> Any:
    vision = {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 8,
        "window_size": 4,
        "global_attn_indexes": [1],
        "mlp_dim": 48,
    }
    text = {**TEXT, "model_type": "qwen2", "rope_parameters": ROPE}
    return _config("GotOcr2Config", text, vision, image_token_id=ids["<imgpad>"], image_seq_length=4)


def _internvl(ids: dict[str, int]) -> Any:
    vision = {**SIGLIP, "image_size": [32, 32], "patch_size": [8, 8]}
    text = {**TEXT, "model_type": "qwen3", "rope_parameters": ROPE}
    return _config("InternVLConfig", text, vision, image_token_id=ids["<IMG_CONTEXT>"], image_seq_length=4)


def _deepseek(ids: dict[str, int]) -> Any:
    vision = {
        "sam_config": {
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 1024,
            "patch_size": 16,
            "window_size": 4,
            "global_attn_indexes": [],
            "mlp_dim": 48,
            "downsample_channels": [16, 32],
        },
        "encoder_config": {**TEXT, "hidden_size": 32, "rope_parameters": ROPE, "head_dim": 8},
    }
    text = {
        **TEXT,
        "rope_parameters": ROPE,
        # Heads share the hidden width, as in Qwen2.5-VL.
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "mlp_layer_types": ["dense", "sparse"],
        **MOE,
        "num_experts": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "norm_topk_prob": False,
    }
    return _config("DeepseekOcr2Config", text, vision, image_token_id=ids["<image>"])


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
MIXED = {
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {**INTERLEAVED, "partial_rotary_factor": 1.0},
}
ROWS = (
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)),
)


def _qwen_images(**settings: Any) -> Callable[[], Any]:
    size = {"shortest_edge": 16**2, "longest_edge": 16**2 * 60}
    return lambda: Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, size=size, **settings
    )


TINY: dict[str, Tiny] = {
    "qwen3_vl": Tiny(
        "Qwen3VLForConditionalGeneration",
        _qwen("Qwen3VLConfig", {"rope_parameters": INTERLEAVED}, {"deepstack_visual_indexes": [0]}),
        _qwen_images(),
    ),
    "qwen2_5_vl": Tiny(
        "Qwen2_5_VLForConditionalGeneration",
        _qwen(
            "Qwen2_5_VLConfig",
            # Heads share the hidden width; vLLM on a CPU has none narrower than 32.
            {"rope_parameters": MROPE, "head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1},
            {"window_size": 32, "fullatt_block_indexes": [1]},
        ),
        _qwen_images(),
    ),
    "paddleocr_vl": Tiny(
        "PaddleOCRVLForConditionalGeneration",
        _paddle,
        lambda: PaddleOCRVLImageProcessorPil(
            patch_size=14,
            merge_size=2,
            temporal_patch_size=1,
            size={"shortest_edge": 28**2, "longest_edge": 28**2 * 30},
        ),
    ),
    "qwen3_5_moe": Tiny(
        "Qwen3_5MoeForConditionalGeneration",
        _qwen("Qwen3_5MoeConfig", {**GDN, **MIXED, **MOE, "shared_expert_intermediate_size": 48}, {}),
        _qwen_images(),
        experts="stacked",
    ),
    "qwen3_vl_moe": Tiny(
        "Qwen3VLMoeForConditionalGeneration",
        _qwen(
            "Qwen3VLMoeConfig",
            {
                "rope_parameters": INTERLEAVED,
                **MOE,
                "mlp_only_layers": [],
                # As published: transformers does so whatever is said, vLLM reads it.
                "norm_topk_prob": True,
            },
            {"deepstack_visual_indexes": [0]},
        ),
        _qwen_images(),
        experts="turned",
    ),
    "glm_ocr": Tiny(
        "GlmOcrForConditionalGeneration",
        _glm,
        lambda: Glm4vImageProcessorPil(
            patch_size=8,
            merge_size=2,
            temporal_patch_size=2,
            size={"shortest_edge": 16**2, "longest_edge": 2 * 16**2 * 60},
        ),
        ("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
    ),
    "idefics3": Tiny(
        "Idefics3ForConditionalGeneration",
        _idefics("Idefics3Config"),
        lambda: Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        ROWS,
        "<image>",
    ),
    "smolvlm": Tiny(
        "SmolVLMForConditionalGeneration",
        _idefics("SmolVLMConfig"),
        lambda: SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        ROWS,
        "<image>",
    ),
    "got_ocr2": Tiny(
        "GotOcr2ForConditionalGeneration",
        _got,
        lambda: GotOcr2ImageProcessorPil(size={"height": 64, "width": 64}),
        ("<imgpad>", "<img>", "</img>", "<|im_start|>", "<|im_end|>"),
        None,
    ),
    "internvl": Tiny(
        "InternVLForConditionalGeneration",
        _internvl,
        lambda: GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=4),
        ("<IMG_CONTEXT>", "<img>", "</img>"),
        "<IMG_CONTEXT>",
    ),
    "lighton_ocr": Tiny(
        "LightOnOcrForConditionalGeneration",
        _lighton,
        lambda: PixtralImageProcessorPil(size={"longest_edge": 128}, patch_size={"height": 16, "width": 16}),
    ),
    "deepseek_ocr2": Tiny(
        "DeepseekOcr2ForConditionalGeneration",
        _deepseek,
        lambda: DeepseekOcr2ImageProcessorPil(size={"height": 768, "width": 768}, max_patches=2),
        ("<image>",),
        None,
    ),
}


QWEN3_5 = Tiny(
    "Qwen3_5ForConditionalGeneration",
    _qwen(
        "Qwen3_5Config",
        {
            **GDN,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "rope_parameters": {**INTERLEAVED, "partial_rotary_factor": 1.0},
        },
        {},
    ),
    _qwen_images(),
)
"""Beside the shared tiny model of the other tests: weights large enough to matter."""
