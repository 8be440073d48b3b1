"""The shape of pico: one place for every size, and the Hugging Face configuration made from them.

Knows sizes and configuration classes; knows nothing of data, training or quantization. A line crop of a page
rendered at 96 to 150 dpi is 13 to 29 pixels high, so that a merged vision token of 20 x 20 pixels makes one
row of tokens out of nearly every line without any rescaling outside the ordinary image processor.
"""

from __future__ import annotations

from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

PATCH_PIXELS = 10
MERGE = 2
TOKEN_PIXELS = PATCH_PIXELS * MERGE
TEMPORAL_PATCH = 2
CHANNELS = 3
MAX_PIXELS = 640_000
COLUMN_PIXELS = 4
COLUMNS_PER_TOKEN = TOKEN_PIXELS // COLUMN_PIXELS
VOCAB_SIZE = 320
POSITION_GRID = 48

HIDDEN_SIZE = 192

TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 4,
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_heads": 3,
    "hidden_act": "gelu",
    "patch_size": PATCH_PIXELS,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": TEMPORAL_PATCH,
    "in_channels": CHANNELS,
    "out_hidden_size": HIDDEN_SIZE,
    "num_position_embeddings": POSITION_GRID**2,
}


def build_config(token_ids: dict[str, int]) -> Qwen3_5Config:
    """The `qwen3_5` configuration of pico.

    `token_ids` maps the special tokens of `tokenizer.SPECIAL` to ids.
    """
    end, pad = token_ids["<|end|>"], token_ids["<|pad|>"]
    text = {**TEXT, "pad_token_id": pad, "eos_token_id": end, "bos_token_id": None}
    return Qwen3_5Config(
        text_config=text,
        vision_config=VISION,
        image_token_id=token_ids["<|image_pad|>"],
        video_token_id=token_ids["<|video_pad|>"],
        vision_start_token_id=token_ids["<|vision_start|>"],
        vision_end_token_id=token_ids["<|vision_end|>"],
        tie_word_embeddings=False,
        eos_token_id=end,
        pad_token_id=pad,
    )


def build_model(token_ids: dict[str, int]) -> Qwen3_5ForConditionalGeneration:
    """Pico with fresh random weights in fp32."""
    return Qwen3_5ForConditionalGeneration(build_config(token_ids)).float()


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """The image processor that goes into the model folder: grey or colour in, patches in [-1, 1] out."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH_PIXELS,
        merge_size=MERGE,
        temporal_patch_size=TEMPORAL_PATCH,
        size={"shortest_edge": TOKEN_PIXELS**2, "longest_edge": MAX_PIXELS},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def resized(height: int, width: int) -> tuple[int, int]:
    """Height and width in pixels to which the image processor brings an image of `height` x `width`."""
    size = smart_resize(height, width, factor=TOKEN_PIXELS, min_pixels=TOKEN_PIXELS**2, max_pixels=MAX_PIXELS)
    return int(size[0]), int(size[1])
