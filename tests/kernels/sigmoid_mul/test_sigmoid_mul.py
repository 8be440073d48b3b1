import pytest
import torch

from ocrquant.errors import ShapeError
from ocrquant.kernels.operand import Operand
from ocrquant.kernels.sigmoid_mul import sigmoid_mul
from ocrquant.kernels.sigmoid_mul.reference import sigmoid_mul_reference
from tests.kernels.producing import BF16, Producer, allocate, bf16_steps, every_check, needs_native, randn

HEAD = 16


def producer(head):
    return Producer(
        run=lambda i, out: sigmoid_mul(i["x"], i["qg"], out),
        reference=lambda i, out: sigmoid_mul_reference(i["x"], i["qg"], out),
        inputs=lambda rows, width, generator: {
            "x": randn((rows, width), generator),
            "qg": randn((rows, width // head, 2 * head), generator, 2.0),
        },
        unit=head,
    )


@needs_native
@every_check
@pytest.mark.parametrize("head", [16, 12, 256])
def test_producer(check, head):
    check(producer(head))


@needs_native
def test_every_gate_agrees_with_torch():
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(1, 1, -1).view(BF16)
    x, out = torch.ones(1, 2**16, dtype=BF16), torch.empty(1, 2**16, dtype=BF16)
    sigmoid_mul(x, torch.cat((torch.zeros_like(gate), gate), dim=2), Operand(plain=out))
    # Below e^-86, which no sum with 1 can tell from 0, sigmoid goes on falling in torch.
    expected = torch.sigmoid(gate)[0].where(gate[0] > -86.0, out)
    steps = bf16_steps(out, expected)
    assert int(steps.max()) <= 1
    assert int((steps > 0).sum()) <= 4


def test_the_gate_is_the_second_half_of_each_head():
    x = torch.ones(1, 4, dtype=BF16)
    large = 100.0
    qg = torch.tensor([[[9.0, 9.0, large, -large], [9.0, 9.0, -large, large]]], dtype=BF16)
    out = torch.empty(1, 4, dtype=BF16)
    sigmoid_mul(x, qg, Operand(plain=out))
    assert out.tolist() == [[1.0, pytest.approx(0.0), pytest.approx(0.0), 1.0]]


def test_reference_is_the_gate_of_hugging_face():
    # What Qwen3_5Attention does: view as heads, chunk each head, flatten the gate, sigmoid, multiply.
    generator = torch.Generator().manual_seed(0)
    q_out, x = randn((40, 4 * 2 * HEAD), generator, 2.0), randn((40, 4 * HEAD), generator)
    _, gate = torch.chunk(q_out.view(1, 40, -1, 2 * HEAD), 2, dim=-1)
    expected = x * torch.sigmoid(gate.reshape(1, 40, -1))[0]
    out = torch.empty_like(x)
    sigmoid_mul_reference(x, q_out.view(40, 4, 2 * HEAD), Operand(plain=out))
    assert torch.equal(out, expected)
    unrounded = (x.float() * torch.sigmoid(gate.reshape(40, -1).float())).to(BF16)
    assert not torch.equal(unrounded, expected)


def test_refuses_what_its_contract_excludes():
    x, qg = torch.zeros(2, 32, dtype=BF16), torch.zeros(2, 2, 32, dtype=BF16)
    with pytest.raises(ShapeError, match=r"op sigmoid_mul: x: expected width heads \* hd = 3 \* 16, got 32"):
        sigmoid_mul(x, torch.zeros(2, 3, 32, dtype=BF16), allocate(2, 32))
    with pytest.raises(ShapeError, match=r"op sigmoid_mul: qg: expected .* R = 2, got \[1, 2, 32\]"):
        sigmoid_mul(x, qg[:1], allocate(2, 32))
