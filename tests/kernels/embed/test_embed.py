import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.formats import fp8
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.embed import embed
from ocrquant.kernels.embed.reference import embed_reference
from ocrquant.kernels.linear import pack
from ocrquant.kernels.program import capture
from tests.kernels.producing import BF16, needs_native, raw, threads

I32 = torch.int32


def make(rows, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(50, width, generator=generator).to(BF16)
    images = torch.randn(9, width, generator=generator).to(BF16)
    tokens = torch.randint(0, 50, (rows,), generator=generator, dtype=I32)
    index = torch.randint(-9, 9, (rows,), generator=generator, dtype=I32).clamp(min=-1)
    return table, tokens, images, index


@pytest.mark.parametrize("run", [embed, embed_reference])
def test_rows_by_hand(run):
    table = torch.tensor([[1.0, -0.0], [2.0, float("inf")]], dtype=BF16)
    images = torch.tensor([[3.0, float("nan")]], dtype=BF16)
    out = torch.zeros(3, 2, dtype=BF16)
    run(table, torch.tensor([1, 0, 99], dtype=I32), out, images, torch.tensor([-1, -1, 0], dtype=I32))
    expected = torch.stack((table[1], table[0], images[0]))
    assert torch.equal(raw(out), raw(expected))


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 33), (0, 8), (513, 1024)])
@pytest.mark.parametrize("with_images", [False, True])
def test_equals_the_reference_bit_for_bit(rows, width, with_images):
    table, tokens, images, index = make(rows, width)
    rest = (images, index) if with_images else ()
    out, expected = (torch.full((rows, width), 7.0, dtype=BF16) for _ in range(2))
    with threads(2):
        embed(table, tokens, out, *rest)
    embed_reference(table, tokens, expected, *rest)
    assert torch.equal(raw(out), raw(expected))


@pytest.mark.parametrize("run", [embed, embed_reference])
def test_an_index_outside_its_table_makes_that_row_nan(run):
    table, _, images, _ = make(0, 8)
    tokens = torch.tensor([0, -1, 50, 2**31 - 1, 49, 0], dtype=I32)
    out = torch.zeros(6, 8, dtype=BF16)
    run(table, tokens, out, images, torch.tensor([-1, -1, -1, -1, -1, 9], dtype=I32))
    assert out.isnan().all(dim=1).tolist() == [False, True, True, True, False, True]
    assert torch.equal(out[4], table[49])


@pytest.mark.parametrize("run", [embed, embed_reference])
@pytest.mark.parametrize("width", [1, 6, 33, 64])
@pytest.mark.parametrize("parts", [(50,), (20, 30)])
def test_a_packed_head_is_a_table_as_well(run, width, parts):
    table, tokens, images, index = make(70, width)
    tokens[:3] = torch.tensor([50, -1, 49], dtype=I32)
    packed = pack(list(table.split(parts)))
    assert packed.panels is not None
    out, expected = (torch.full((70, width), 7.0, dtype=BF16) for _ in range(2))
    run(packed, tokens, out, images, index)
    embed_reference(table, tokens, expected, images, index)
    assert torch.equal(raw(out), raw(expected))


def test_a_packed_head_of_another_dtype_is_a_table_as_well():
    table = make(0, 8)[0].double()
    out = torch.empty(2, 8, dtype=torch.float64)
    embed(pack(table), torch.tensor([49, 3], dtype=I32), out)
    assert torch.equal(out, table[[49, 3]])


def test_a_quantized_head_is_no_table():
    weight = torch.ones(16, 8)
    scale = fp8.weight_decode_scale(weight, "channel")
    packed = pack(FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale))
    tokens, out = torch.zeros(1, dtype=I32), torch.empty(1, 8, dtype=BF16)
    with pytest.raises(ShapeError, match="op embed: table: expected a weight that is not quantized, got fp8"):
        embed(packed, tokens, out)


@needs_native
def test_a_replay_follows_its_input():
    table, tokens, images, index = make(5, 8)
    out = torch.empty(5, 8, dtype=BF16)
    with capture() as program:
        embed(table, tokens, out, images, index)
    tokens.fill_(3)
    index.fill_(-1)
    program.run()
    assert torch.equal(out, table[3].expand(5, 8))


def test_refuses_what_its_contract_excludes():
    table, tokens, images, index = make(5, 8)
    out = torch.empty(5, 8, dtype=BF16)
    with pytest.raises(ShapeError, match=r"op embed: tokens: expected torch.int32, got torch.int64"):
        embed(table, tokens.long(), out)
    with pytest.raises(ShapeError, match=r"op embed: image_index: expected given exactly when images is"):
        embed(table, tokens, out, images)
    with pytest.raises(ShapeError, match=r"op embed: images: expected .* h = 8, got \[9, 4\]"):
        embed(table, tokens, out, images[:, :4].contiguous(), index)
