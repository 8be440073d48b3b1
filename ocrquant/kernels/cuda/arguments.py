"""What the launchers of csrc/cuda take, as ctypes see it: the structures and a table of signatures.

Mirrors operand.cuh and arguments.cuh in the folders of csrc/cuda; a library whose structures have
other sizes is refused when it is loaded. Knows bytes; knows no tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SIGNATURES", "SIZES", "CursorMove", "LinearArgs", "OperandOut", "ReplayWindow"]

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class OperandOut(ctypes.Structure):
    """Where a producer writes; addresses are 0 for what is not wanted."""

    _fields_ = (
        *[
            (name, _POINTER)
            for name in (
                "plain",
                "fp8",
                "fp8_scale",
                "fp8_static",
                "nvfp4",
                "nvfp4_scale",
                "encode_scale",
            )
        ],
        ("rows", _LONG),
        ("width", _LONG),
        ("is_swizzled", _INT),
    )


class ReplayWindow(ctypes.Structure):
    """One layer's rows, checkpoints and rings."""

    _fields_ = (
        *[
            (name, _POINTER)
            for name in (
                "mixed",
                "a",
                "b",
                "a_log",
                "dt_bias",
                "state",
                "u",
                "k",
                "log_gate",
                "base",
                "write_pos",
                "flush",
                "q_start",
                "slots",
                "out",
            )
        ],
        *[(name, _LONG) for name in ("mixed_stride", "a_stride", "b_stride")],
        *[
            (name, _INT)
            for name in (
                "requests",
                "key_heads",
                "heads",
                "key_dim",
                "value_dim",
                "size",
                "history",
                "accepted",
            )
        ],
    )


class CursorMove(ctypes.Structure):
    """Cursors of a pool and what a step accepted."""

    _fields_ = (
        *[(name, _POINTER) for name in ("base", "write_pos", "flush", "flushes", "slots", "accepted")],
        *[(name, _INT) for name in ("requests", "size", "history", "window", "reset")],
    )


class LinearArgs(ctypes.Structure):
    """Rows, a weight in codes, and the result."""

    _fields_ = (
        *[(name, _POINTER) for name in ("x", "codes", "block_scale", "channel_scale", "bias", "out")],
        *[(name, _LONG) for name in ("x_stride", "out_stride", "rows", "inputs", "outputs")],
        *[(name, _INT) for name in ("is_float", "is_bias_float")],
    )


_OPERAND, _REPLAY, _MOVE = (ctypes.POINTER(kind) for kind in (OperandOut, ReplayWindow, CursorMove))
_LINEAR = ctypes.POINTER(LinearArgs)

SIZES: Mapping[str, type[ctypes.Structure]] = MappingProxyType(
    {
        "ocrquant_operand_bytes": OperandOut,
        "ocrquant_replay_bytes": ReplayWindow,
        "ocrquant_move_bytes": CursorMove,
        "ocrquant_linear_bytes": LinearArgs,
    }
)
"""Functions of a library that tell the size of a structure."""

SIGNATURES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "convert": (_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _INT),
        "swizzle_scales": (_POINTER, _LONG, _LONG, _POINTER),
        "quantize": (_POINTER, _LONG, _OPERAND),
        "silu_mul": (_POINTER, _LONG, _OPERAND),
        "gated_rms_norm": (_POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG, _FLOAT, _OPERAND),
        "replay_window": (_REPLAY, _INT),
        "move_cursors": (_MOVE,),
        "linear_nvfp4": (_LINEAR,),
        "linear_fp8": (_LINEAR,),
    }
)
"""Arguments of each launcher, without the stream that comes last."""
