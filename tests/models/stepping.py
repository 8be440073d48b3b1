"""What an engine does for a model, by hand and one step at a time: pages, slots, metadata."""

from dataclasses import dataclass, field

import torch

from ocrquant.kernels.causal_conv import causal_conv
from ocrquant.kernels.gated_delta_rows import gated_delta_rows
from ocrquant.models.step import AttentionMetadata, Caches, Classes, Rows, StateMetadata, Step

PAGE_SIZE = 5
MAX_ROWS = 512
NO_ROWS = Rows(slice(0, 0), slice(0, 0))


class PlainStates:
    """States in one pool of slots, moved on by the two ops."""

    def __init__(self, spec, slots, dtype, state_dtype):
        shape = (slots, spec.value_heads, spec.key_dim, spec.value_dim)
        # Garbage: whoever starts afresh must not read it.
        self.state = [torch.full(shape, 7.0, dtype=state_dtype) for _ in range(spec.num_layers)]
        self.mixed = torch.empty(MAX_ROWS, spec.conv_channels, dtype=dtype)
        self.tail = [torch.full((slots, 3, spec.conv_channels), 7.0, dtype=dtype) for _ in self.state]

    def advance(self, layer, inputs, meta, out):
        mixed = self.mixed[: len(inputs.mixed)]
        where = (meta.q_start, meta.slots, meta.fresh)
        causal_conv(inputs.mixed, inputs.conv_weight, self.tail[layer], *where, mixed)
        state = self.state[layer]
        gated_delta_rows(
            mixed, inputs.a, inputs.b, inputs.a_log, inputs.dt_bias, state, *where, out, inputs.key_heads
        )


@dataclass
class Part:
    """Rows of one request in a step."""

    request: int
    tokens: torch.Tensor  # [m]
    positions: torch.Tensor  # [3, m]
    image_index: torch.Tensor | None = None  # [m]
    logits: str = "last"  # or "all", or "none"


def i32(values):
    return torch.as_tensor(values, dtype=torch.int32)


@dataclass
class Stepper:
    """Drives a model; pages of a request lie anywhere, in no order."""

    model: object
    requests: int = 1
    max_len: int = 64
    codes: bool = False
    dtype: torch.dtype = torch.float32
    lengths: dict = field(default_factory=dict)

    def __post_init__(self):
        spec = self.model.spec.attention
        per_request = -(-self.max_len // PAGE_SIZE)
        order = torch.randperm(self.requests * per_request, generator=torch.Generator().manual_seed(5))
        self.pages = order.view(self.requests, per_request)
        shape = (order.numel(), PAGE_SIZE, spec.kv_heads, spec.head_dim)
        kind = torch.uint8 if self.codes else self.dtype
        k, v = ([torch.full(shape, 9, dtype=kind) for _ in range(spec.num_layers)] for _ in range(2))
        scales = self.model.kv_scales if self.codes else [(1.0, 1.0)] * spec.num_layers
        state = self.model.spec.state
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.caches = Caches(
            k=k,
            v=v,
            k_scales=[one[0] for one in scales],
            v_scales=[one[1] for one in scales],
            state=None if state is None else PlainStates(state, self.requests, self.dtype, wide),
        )

    def step(self, parts, images=None, keep=None):
        """Logits [wanted rows, vocab] of one step; `keep` is handed what must outlive it."""
        starts, slot_mapping, wanted, fresh = [0], [], [], []
        for part in parts:
            seen, count = self.lengths.get(part.request, 0), len(part.tokens)
            for position in range(seen, seen + count):
                page = self.pages[part.request, position // PAGE_SIZE].item()
                slot_mapping.append(page * PAGE_SIZE + position % PAGE_SIZE)
            rows = range(starts[-1], starts[-1] + count)
            wanted += {"all": rows, "last": rows[-1:], "none": []}[part.logits]
            fresh.append(int(seen == 0))
            starts.append(starts[-1] + count)
            self.lengths[part.request] = seen + count
        requests = [part.request for part in parts]
        classes = Classes(NO_ROWS, NO_ROWS, Rows(slice(0, starts[-1]), slice(0, len(parts))))
        index = None
        if images is not None:
            index = i32(
                torch.cat(
                    [
                        torch.full((len(part.tokens),), -1) if part.image_index is None else part.image_index
                        for part in parts
                    ]
                )
            )
        step = Step(
            tokens=i32(torch.cat([part.tokens for part in parts])),
            positions=i32(torch.cat([part.positions for part in parts], 1)),
            image_index=index,
            logit_rows=i32(wanted),
            attention=AttentionMetadata(
                slot_mapping=i32(slot_mapping),
                page_table=i32(self.pages[requests]),
                q_start=i32(starts),
                kv_len=i32([self.lengths[request] for request in requests]),
            ),
            state=StateMetadata(i32(starts), i32(requests), i32(fresh), classes),
            classes=classes,
        )
        kind = torch.float64 if self.dtype == torch.float64 else torch.float32
        logits = torch.full((len(wanted), self.model.spec.vocab), torch.nan, dtype=kind)
        if keep is not None:
            keep(step, self.caches, images, logits)
        self.model.forward(step, self.caches, images, logits)
        return logits
