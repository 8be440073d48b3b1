"""Kernels in CUDA C++ for sm_90a (H200) and sm_100a (B200): compiled by nvcc, called through ctypes.

The sources are csrc/cuda; nothing of torch is compiled in. A call launches on the current stream of its
tensors' device, allocates nothing there and waits for nothing, so that it may be captured in a graph. On
tensors of a CPU the very same source runs emulated, one thread of a block after another: slow, and how the
kernels are tested where there is no GPU.

`missing_reason` says whether they can run on a device; `build` compiles, and tells registers and spills.
"""

from __future__ import annotations

from ocrquant.kernels.cuda.compiler import (
    ARCHITECTURES,
    EMULATED,
    Build,
    architecture_of,
    build,
    missing_compiler,
)
from ocrquant.kernels.cuda.conversions import convert, swizzle_scales
from ocrquant.kernels.cuda.library import architecture, library, missing_reason
from ocrquant.kernels.cuda.linear import small_linear, takes_linear
from ocrquant.kernels.cuda.producers import gated_rms_norm, quantize, silu_mul
from ocrquant.kernels.cuda.replay import move_cursors, replay_rows

__all__ = [
    "ARCHITECTURES",
    "EMULATED",
    "Build",
    "architecture",
    "architecture_of",
    "build",
    "convert",
    "gated_rms_norm",
    "library",
    "missing_compiler",
    "missing_reason",
    "move_cursors",
    "quantize",
    "replay_rows",
    "silu_mul",
    "small_linear",
    "swizzle_scales",
    "takes_linear",
]
