"""The drafter against one that is written out query by query; DFlash2 against DFlash."""

import pytest
import torch

from ocrquant.drafter.batching import collate
from ocrquant.drafter.convolution import AFTER, BEFORE, LocalConvolution
from ocrquant.drafter.model import DraftModel
from tests.drafter.making import HIDDEN, VOCAB, config, second, sequence

EMBEDDING = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))


def fresh(made, seed=0):
    torch.manual_seed(seed)
    return DraftModel(made).double().eval()


def batch_of(made, places=((6, 9, 17), (7, 8, 12)), lengths=(20, 15)):
    pages = [sequence(length, seed=i) for i, length in enumerate(lengths)]
    return pages, collate(pages, [torch.tensor(p) for p in places], EMBEDDING, made)


def doubled(blocks):
    return type(blocks)(blocks.context.double(), blocks.anchors, blocks.inputs.double())


def rotate(vector, position, theta):
    half = len(vector) // 2
    out = vector.clone()
    for i in range(half):
        angle = torch.tensor(position * theta ** (-2 * i / len(vector)), dtype=torch.float64)
        a, b = vector[i], vector[i + half]
        out[i], out[i + half] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def one_block(model, page, anchor):
    """Hidden states of one block, a query at a time, with nothing shared."""
    made, size = model.config, model.config.block_size
    context = model.hidden_norm(model.fc(page.features.double()))
    ids = torch.full((size,), made.mask_token_id)
    ids[0] = page.tokens[anchor]
    x = EMBEDDING[ids].double()
    share = made.num_attention_heads // made.num_key_value_heads
    for layer, kind in zip(model.layers, made.layer_types, strict=True):
        attention, y = layer.self_attn, layer.input_layernorm(x)
        out = torch.zeros(size, made.num_attention_heads, made.head_dim, dtype=torch.float64)
        for query in range(size):
            keys = [(i, context[i]) for i in range(min(anchor, len(context)))]
            if kind == "sliding_attention":
                first = anchor if made.window_lower == "anchor" else anchor + query + 1
                keys = [(i, row) for i, row in keys if i >= first - made.sliding_window]
            last = size if made.block_attention == "bidirectional" else query + 1
            keys += [(anchor + j, y[j]) for j in range(last)]
            for head in range(made.num_attention_heads):
                part = slice(head * made.head_dim, (head + 1) * made.head_dim)
                own = slice((head // share) * made.head_dim, (head // share + 1) * made.head_dim)
                q = rotate(
                    attention.q_norm(attention.q_proj(y[query])[part]), anchor + query, made.rope_theta
                )
                k = [rotate(attention.k_norm(attention.k_proj(r)[own]), i, made.rope_theta) for i, r in keys]
                v = torch.stack([attention.v_proj(r)[own] for _, r in keys])
                weights = (torch.stack(k) @ q * made.head_dim**-0.5).softmax(0)
                out[query, head] = weights @ v
        x = x + attention.o_proj(out.flatten(1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.norm(x)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_attention": "causal"},
        {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 3},
        {
            "layer_types": ("full_attention", "sliding_attention"),
            "sliding_window": 5,
            "window_lower": "query",
        },
    ],
)
@torch.no_grad()
def test_blocks_equal_those_written_out(changes):
    model = fresh(config(**changes))
    pages, batch = batch_of(model.config)
    found = model(doubled(batch.blocks))
    for row, page in enumerate(pages):
        for column, anchor in enumerate(batch.blocks.anchors[row].tolist()):
            torch.testing.assert_close(
                found[row, column], one_block(model, page, anchor), rtol=1e-6, atol=1e-6
            )


@torch.no_grad()
def test_a_block_sees_features_before_its_anchor_and_none_else():
    model = fresh(config())
    _, batch = batch_of(model.config, places=((9,),), lengths=(20,))
    blocks = doubled(batch.blocks)
    before = model(blocks)
    blocks.context[0, 9:] = 1e3
    torch.testing.assert_close(model(blocks), before)
    blocks.context[0, 8] += 1
    assert not torch.allclose(model(blocks), before)


@torch.no_grad()
def test_the_second_drafter_begins_as_the_first_bit_for_bit():
    first, other = DraftModel(config()).eval(), DraftModel(second()).eval()
    missing = other.load_state_dict(first.state_dict(), strict=False).missing_keys
    assert missing
    assert all("conv" in name or "selector" in name for name in missing)
    _, batch = batch_of(first.config)
    assert torch.equal(first(batch.blocks), other(batch.blocks))


@torch.no_grad()
def test_a_convolution_by_hand():
    convolution = LocalConvolution(hidden=4, taps=2, group=2)
    z = torch.randn(3, 4)
    y = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    kernels = convolution.kernels(z)
    assert torch.equal(convolution.convolve(y, kernels, BEFORE), y)
    convolution.base_kernel[AFTER, 1] = torch.tensor([1.0, 0, 0, 2])
    changed = convolution.convolve(y, convolution.kernels(z), AFTER)
    assert torch.equal(changed, torch.tensor([[1.0, 2, 3, 4], [6, 6, 7, 16], [14, 10, 11, 28]]))
    # What a token adds holds for a group of channels: tap 0 of side 0, channels 2 and 3.
    convolution.kernel_projection.weight[1] = torch.tensor([1.0, 0, 0, 0])
    added = convolution.convolve(y, convolution.kernels(z), BEFORE)
    torch.testing.assert_close(added[:, :2], y[:, :2])
    torch.testing.assert_close(added[:, 2:], y[:, 2:] * (1 + z[:, :1]))


@torch.no_grad()
def test_blocks_do_not_see_one_another():
    model = fresh(second())
    torch.nn.init.normal_(model.layers[0].attention_conv.kernel_projection.weight)
    pages, together = batch_of(model.config)
    found = model(doubled(together.blocks))
    alone = collate(pages[1:], [torch.tensor([8])], EMBEDDING, model.config)
    torch.testing.assert_close(model(doubled(alone.blocks))[0, 0], found[1, 1])
