"""The seam: one product for several linears, each with what its scheme asks for, each with a record."""

import pytest
import torch

from ocrquant.errors import ModelError
from ocrquant.formats import Precision, fp8, nvfp4
from ocrquant.formats.weights import FP8Weight
from ocrquant.kernels.quantize import quantize
from ocrquant.models.layers.linear import LinearFactory, records_table
from ocrquant.models.weights import MappingSource, WeightReader
from ocrquant.models.workspace import Workspace
from ocrquant.simulate import SimulatedLinear, simulated_output

WIDTH, ROWS = 64, 7
CPU = torch.device("cpu")
SCALE = torch.tensor([700.0])


def stored(precision, weight):
    if precision == "bf16":
        return weight
    if precision == "fp8":
        scale = fp8.weight_decode_scale(weight, "channel")
        return FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale)
    return nvfp4.quantize(weight, nvfp4.global_encode_scale(weight.abs().amax()))


class Made:
    """Linears `0`, `1`, ... of the given precisions and output widths, merged into one product."""

    def __init__(self, precisions, outs, *, scales=None, activations="quantized", bias=False):
        generator = torch.Generator().manual_seed(2)

        def random(*shape):
            return torch.randn(*shape, generator=generator).bfloat16()

        self.names = [str(number) for number in range(len(outs))]
        self.weights = {
            # Each of another size, so that global scales of merged weights differ.
            name: stored(precision, random(out, WIDTH).float().mul(1 + int(name)).bfloat16())
            for name, precision, out in zip(self.names, precisions, outs, strict=True)
        }
        self.biases = {name: random(out) for name, out in zip(self.names, outs, strict=True)} if bias else {}
        plain = {f"{n}.weight": w for n, w in self.weights.items() if isinstance(w, torch.Tensor)}
        plain |= {f"{n}.bias": b for n, b in self.biases.items()}
        quantized = {n: w for n, w in self.weights.items() if not isinstance(w, torch.Tensor)}
        self.scales = dict(zip(self.names, scales or [SCALE] * len(outs), strict=True))
        source = MappingSource(plain, quantized, self.scales)
        reader = WeightReader(source, torch.bfloat16, CPU)
        self.workspace = Workspace(torch.bfloat16, CPU)
        self.factory = LinearFactory(reader, self.workspace, activations)
        members = list(zip(self.names, outs, strict=True))
        self.linear = self.factory.make("merged", "x", members, WIDTH, bias=bias)
        self.operand = self.factory.operand("x", WIDTH, self.linear)
        self.workspace.reserve(ROWS)
        self.x = random(ROWS, WIDTH)
        self.outs = outs

    def run(self):
        scratch = self.workspace.view(ROWS)
        quantize(self.x, scratch.operand(self.operand))
        wide = torch.full((ROWS, sum(self.outs) + 3), torch.nan, dtype=torch.bfloat16)
        self.linear(scratch, wide[:, : sum(self.outs)])
        assert wide[:, sum(self.outs) :].isnan().all()
        return wide[:, : sum(self.outs)]

    def expected(self):
        """As the simulation computes each linear for itself."""
        found = []
        for name, weight in self.weights.items():
            bias = self.biases.get(name)
            if isinstance(weight, torch.Tensor):
                y = self.x.float() @ weight.float().T
                found.append((y if bias is None else y + bias.float()).bfloat16())
                continue
            scale = self.scales[name] if weight.precision is Precision.NVFP4 else None
            found.append(simulated_output(self.x, SimulatedLinear.of(weight, scale), bias))
        return torch.cat(found, 1)


def assert_close(found, expected):
    # One step of bf16 where a sum in another order falls on the other side of a tie.
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)
    assert (found != expected).float().mean() < 0.02


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "precisions",
    [
        ("bf16",) * 3,
        ("fp8",) * 3,
        ("nvfp4",) * 3,
        ("nvfp4", "fp8", "bf16"),
        ("bf16", "nvfp4", "nvfp4"),
        ("fp8", "nvfp4", "fp8"),
    ],
)
def test_a_merged_product_equals_the_simulated_linears(precisions, bias):
    made = Made(precisions, (48, 16, 20), bias=bias)
    assert_close(made.run(), made.expected())
    assert [record.stored for record in made.factory.records] == list(precisions)
    assert all(record.as_asked for record in made.factory.records)


def test_neighbours_of_one_precision_are_one_weight():
    assert len(Made(("nvfp4", "nvfp4", "nvfp4"), (48, 16, 20)).linear.specs) == 1
    assert len(Made(("nvfp4", "fp8", "nvfp4"), (48, 16, 20)).linear.specs) == 3


@pytest.mark.parametrize(
    ("precisions", "plain", "has_fp8", "has_nvfp4"),
    [
        (("bf16", "bf16"), True, False, False),
        (("fp8", "fp8"), False, True, False),
        (("nvfp4", "nvfp4"), False, False, True),
        (("nvfp4", "bf16"), True, False, True),
    ],
)
def test_a_producer_writes_what_is_read_and_nothing_else(precisions, plain, has_fp8, has_nvfp4):
    made = Made(precisions, (16, 16))
    operand = made.workspace.view(ROWS).operand(made.operand)
    forms = (operand.plain is not None, operand.fp8 is not None, operand.nvfp4 is not None)
    assert forms == (plain, has_fp8, has_nvfp4)


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_plain_activations_are_said_to_be_another_thing_than_asked(precision):
    made = Made((precision, "bf16"), (32, 16), activations="plain")
    weight = made.weights["0"].dequantize(torch.float32)
    expected = (made.x.float() @ weight.T).bfloat16()
    assert_close(made.run()[:, :32], expected)
    quantized, plain = made.factory.records
    assert (quantized.stored, quantized.reads, quantized.as_asked) == (precision, "plain", False)
    assert (plain.stored, plain.reads, plain.as_asked) == ("bf16", "plain", True)
    assert "(!)" in records_table([quantized])
    assert "(!)" not in records_table([plain])


def test_two_global_scales_of_the_same_rows_are_refused():
    with pytest.raises(ModelError, match=r"global input scales of merged: .*got \[300\.0, 700\.0\]"):
        Made(("nvfp4", "nvfp4"), (16, 16), scales=[SCALE, torch.tensor([300.0])])
    # Nobody reads codes here, so there is nothing to be refused.
    scales = [SCALE, torch.tensor([300.0])]
    Made(("nvfp4", "nvfp4"), (16, 16), scales=scales, activations="plain").run()


def test_an_nvfp4_linear_without_a_global_scale_is_refused():
    weight = stored("nvfp4", torch.ones(16, WIDTH))
    reader = WeightReader(MappingSource({}, {"a": weight}), torch.bfloat16, CPU)
    factory = LinearFactory(reader, Workspace(torch.bfloat16, CPU), "quantized")
    with pytest.raises(ModelError, match="global scale of the input of a"):
        factory.make("a", "x", [("a", 16)], WIDTH)


def test_the_table_names_every_linear_and_what_runs():
    made = Made(("nvfp4", "fp8", "bf16"), (48, 16, 20))
    made.run()
    lines = records_table(made.factory.records).splitlines()
    assert lines[0].split()[:3] == ["linear", "shape", "weight"]
    cells = [line.split("  ") for line in lines[1:4]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in cells]
    assert [line[:5] for line in cells] == [
        ["0", "48x64", "nvfp4", "nvfp4, calibrated", "nvfp4, calibrated"],
        ["1", "16x64", "fp8", "fp8, scaled by token", "fp8, scaled by token"],
        ["2", "20x64", "bf16", "plain", "plain"],
    ]
    assert all(line[5] == "merged" for line in cells)
    assert lines[-1].startswith("products: ")
