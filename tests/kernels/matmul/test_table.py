"""The table of products: every one is served, by what the architecture can do, and for a stated reason."""

from typing import get_args

import pytest

from ocrquant.kernels.cuda.linear import WIDTH_MULTIPLES
from ocrquant.kernels.matmul import table
from ocrquant.kernels.matmul.arch import ARCHES
from ocrquant.kernels.matmul.library import IMPLEMENTATIONS
from ocrquant.kernels.matmul.table import FORMS, RULES, Form, Product, choose, refusals


def served(form, arch, outputs=256, inputs=512, *, is_wide=False):
    return choose(Product(form, outputs, inputs, is_wide), ARCHES[arch]).implementation


def test_every_form_has_rules_and_every_implementation_a_rule():
    assert set(FORMS) == set(get_args(Form)) == {rule.form for rule in RULES}
    assert set(IMPLEMENTATIONS) == {rule.implementation for rule in RULES}
    assert all(rule.reason for rule in RULES)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(256, 512), (1, 16), (7, 48), (248320, 4096)])
@pytest.mark.parametrize("is_wide", [False, True])
def test_every_product_is_served(arch, form, sizes, is_wide):
    assert choose(Product(form, *sizes, is_wide), ARCHES[arch]).form == form


def test_matrix_units_are_used_where_they_are():
    assert served("fp8 x fp8", "sm_90a") == served("fp8 x fp8", "sm_100a") == "scaled_mm rows"
    assert served("fp8 x fp8", "sm_80") == "decode"
    assert served("nvfp4 x nvfp4", "sm_100a") == served("nvfp4 x nvfp4", "sm_120a") == "scaled_mm blocks"
    assert served("nvfp4 x nvfp4", "sm_90a") == "decode"


def test_sizes_and_results_that_libraries_refuse_go_elsewhere():
    assert served("fp8 x fp8", "sm_100a", is_wide=True) == "scaled_mm sums"
    assert served("fp8 x fp8", "sm_100a", outputs=40) == "decode"
    assert served("nvfp4 x nvfp4", "sm_100a", inputs=48) == "decode"
    assert served("nvfp4 x nvfp4", "sm_100a", is_wide=True) == "scaled_mm blocks"


def test_what_does_not_serve_says_why():
    arch = ARCHES["sm_90a"]
    found = {rule.implementation: why for rule, why in refusals(Product("nvfp4 x nvfp4", 256, 512), arch)}
    assert found == dict.fromkeys(
        ("flashinfer mm_fp4", "scaled_mm blocks"), "sm_90a has no nvfp4 matrix units"
    )
    found = dict(
        (rule.implementation, why) for rule, why in refusals(Product("fp8 x fp8", 40, 512, True), arch)
    )
    assert found.pop("flashinfer bmm_fp8")
    assert found == {
        "scaled_mm rows": "writes bf16 only",
        "scaled_mm sums": "40 outputs are no multiple of 16",
    }


def test_a_library_that_is_missing_or_not_asked_for_is_named(monkeypatch):
    product, arch = Product("nvfp4 x nvfp4", 64, 64, is_uniform=True), ARCHES["sm_100a"]
    (first, *_) = (rule for rule in RULES if rule.library == "flashinfer" and rule.form == product.form)
    monkeypatch.setattr(table.libraries, "unusable", lambda name: "flashinfer-python is not installed")
    assert list(refusals(product, arch)) == [(first, "flashinfer-python is not installed")]
    monkeypatch.setattr(table.libraries, "unusable", lambda name: "")
    assert list(refusals(product, arch)) == [(first, "OCRQUANT_LIBRARIES does not name flashinfer")]
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer")
    assert choose(product, arch) is first
    several = Product("nvfp4 x nvfp4", 64, 64)
    assert list(refusals(several, arch)) == [(first, "takes one scale a side")]


def test_kernels_in_cuda_serve_few_rows_where_they_are_asked_for(monkeypatch):
    few, many = (Product("bf16 x nvfp4", 256, 512, is_small=small) for small in (True, False))
    arch = ARCHES["sm_90a"]
    assert choose(few, arch).implementation == "decode"
    assert dict(refusals(few, arch)) == {RULES[-2]: "OCRQUANT_KERNELS is not cuda"}
    monkeypatch.setenv("OCRQUANT_KERNELS", "cuda")
    assert choose(few, arch).implementation == "small_linear"
    assert choose(many, arch).implementation == "decode"
    assert [why for _, why in refusals(many, arch)] == ["for 16 rows at most"]
    assert [why for _, why in refusals(few, ARCHES["sm_120a"])] == ["not compiled for sm_120a"]
    assert choose(Product("bf16 x nvfp4", 256, 48, is_small=True), arch).implementation == "decode"


def test_the_table_and_the_kernel_agree_on_what_small_linear_takes():
    found = {rule.form: rule for rule in RULES if rule.implementation == "small_linear"}
    assert {form: rule.multiples[1] for form, rule in found.items()} == {
        f"bf16 x {precision}": multiple for precision, multiple in WIDTH_MULTIPLES.items()
    }
    assert {rule.takes for rule in found.values()} == {
        f"inputs in multiples of {multiple}, 16 rows at most" for multiple in WIDTH_MULTIPLES.values()
    }
