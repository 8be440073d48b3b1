"""ModelOpt's NVFP4 quantizer on a CPU: values by hand, and what is left as it was."""

import pytest
import torch

from ocrquant.errors import RecipeError
from ocrquant.toolkits.missing import load_toolkit
from ocrquant.toolkits.modelopt_cpu import block_quantizer_on_cpu, fake_nvfp4

tensor_quant = pytest.importorskip("modelopt.torch.quantization.tensor_quant")


def test_values_by_hand():
    # amax 6: global scale 448, so the block's scale is 6 / 6 * 448 = 448 and the grid is 0, 0.5, 1, 1.5, 2.
    x = torch.tensor([[0.24, 0.26, 2.4, 2.5, -5.1, 6.0] + [0.0] * 10])
    expected = [0.0, 0.5, 2.0, 2.0, -6.0, 6.0] + [0.0] * 10
    assert fake_nvfp4(x, torch.tensor(6.0)).tolist() == [expected]
    # Half the range in the block: its scale is 0.5, and the grid is twice as fine.
    assert fake_nvfp4(x / 2, torch.tensor(6.0)).tolist() == [[value / 2 for value in expected]]


def test_a_quantizer_of_modelopt_runs_and_is_restored():
    from modelopt.torch.quantization.config import QuantizerAttributeConfig
    from modelopt.torch.quantization.nn import TensorQuantizer

    config = QuantizerAttributeConfig(
        num_bits=(2, 1), block_sizes={-1: 16, "type": "dynamic", "scale_bits": (4, 3)}
    )
    quantizer = TensorQuantizer(config)
    quantizer.amax = torch.tensor(6.0)
    x = torch.linspace(-6, 6, 64).view(2, 32)
    original = tensor_quant.dynamic_block_quantize_op
    with block_quantizer_on_cpu():
        assert torch.equal(quantizer(x), fake_nvfp4(x, torch.tensor(6.0)))
    assert tensor_quant.dynamic_block_quantize_op is original
    if not torch.cuda.is_available():
        with pytest.raises(AssertionError, match="CUDA"):
            quantizer(x)


def test_gradients_pass_through_to_what_modelopt_scores_with():
    x = torch.randn(2, 32, requires_grad=True)
    with block_quantizer_on_cpu():
        out = tensor_quant.dynamic_block_quant(x, 16, torch.tensor(6.0), None, (2, 1), (4, 3), None)
        out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_a_toolkit_that_is_not_there_is_named_with_what_installs_it():
    with pytest.raises(RecipeError, match=r"weights.engine.*no_such_toolkit.*ocrquant\[toolkits\]"):
        load_toolkit("no_such_toolkit", "no-such-toolkit", "weights.engine")
