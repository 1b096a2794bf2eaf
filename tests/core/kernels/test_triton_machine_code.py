"""Triton's kernels become machine code for GPUs from Ampere to Blackwell, without spilled registers."""

import contextlib
import itertools
import os

import pytest
import torch

from tests.core.attention_cases import call, draw
from txlcli.core.kernels.modes import float32_products, use_row_multiple

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets its kernels, and compiles none", allow_module_level=True)
pytest.importorskip("triton", reason="Triton compiles the kernels; it is not among the test packages")

from tests.core.kernels.triton_compiler import SHARED_BYTES, compiled_by, compiling_for, resources, warp_columns
from txlcli.core.kernels import attention_triton, normalizer_triton, updates_triton
from txlcli.core.kernels.updates import chunks_of

B, H, L, K = 2, 4, 64, 128
FEW_BYTES = 40
"""Where the assembler keeps to fewer registers by itself, so that more programs run at once."""
MAX_REGISTERS = 255
SPILLED_OF_ALL_REGISTERS = 16
"""Bytes that the kernel of keys spills without position scores, in 16 bits with dropout, for capability 9.0."""
PRODUCTS = {"forward": 2, "backward_of_keys": 4, "backward_of_queries": 1}


UPDATES = ("adam", "lamb_moments", "sum", "lamb")
ATTENTION = ("forward", "token", "combine", "backward_of_keys", "backward_of_queries")


@contextlib.contextmanager
def reporting(capability, module=attention_triton.kernels, names=ATTENTION):
    """Yield the resources of each kernel of a module that the block calls; they are there after it."""
    kernels = {name: getattr(module, f"{name}_kernel") for name in names}
    reports = {}
    with compiling_for(capability):
        compiled_by(capability, kernels)  # by an earlier test
        yield reports
    for name, compiled in compiled_by(capability, kernels).items():
        reports[name] = resources(compiled) | {"columns": warp_columns(compiled)}
        print(name, capability, reports[name])  # pytest -s shows it


def compile_all(capability, dtype, width, *, dropout=0.1, positions=True):
    """Return the resources of the kernels that a training step runs."""
    shapes = {"query": (B, L, H, width), "key": (B, K, H, width), "value": (B, K, H, width)}
    tensors = {name: draw(*shape, dtype=dtype).transpose(1, 2).requires_grad_() for name, shape in shapes.items()}
    if positions:
        tensors["position_key"] = draw(H, K, width, dtype=dtype).requires_grad_()
        tensors |= {name: draw(H, width, dtype=dtype) for name in ("content_bias", "position_bias")}
    with reporting(capability) as reports, use_row_multiple(8):
        out = call(attention_triton.attend, **tensors, reach=K, dropout=dropout)
        torch.autograd.grad(out.sum(), list(tensors.values())[:3])
    return reports


def assert_fits(reports, capability, *, tensor_cores):
    assert reports.keys() == PRODUCTS.keys()
    for name, needs in reports.items():
        limit = FEW_BYTES if needs["registers"] < MAX_REGISTERS else SPILLED_OF_ALL_REGISTERS
        assert needs["spilled"] <= limit, (name, needs)
        assert needs["shared"] <= SHARED_BYTES[capability], name
        assert (needs["tensor_cores"] >= PRODUCTS[name]) is tensor_cores, name


def assert_coalesced(reports):
    """Rows of D numbers are read by 64 neighbors of a warp, too; single numbers and pairs would be read one by one."""
    accesses = {"forward": 3, "backward_of_keys": 4, "backward_of_queries": 3}  # in two dimensions, at least
    for name, count in accesses.items():
        columns = reports[name]["columns"]
        assert len(columns) >= count, name
        assert min(columns) >= 32, (name, columns)


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_kernels_of_enwik8_in_bf16_use_tensor_cores_and_spill_no_registers(capability):
    reports = compile_all(capability, torch.bfloat16, 64)
    assert_fits(reports, capability, tensor_cores=True)
    assert_coalesced(reports)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "dtype", "width"),
    list(itertools.product(SHARED_BYTES, (torch.bfloat16, torch.float16, torch.float32), (16, 41, 48, 64, 96, 128))),
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("positions", [True, False])
def test_every_kernel_spills_few_registers_at_most(capability, dtype, width, dropout, positions):
    reports = compile_all(capability, dtype, width, dropout=dropout, positions=positions)
    assert_fits(reports, capability, tensor_cores=dtype != torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "width"), list(itertools.product(SHARED_BYTES, (64, 128))))
def test_tf32_uses_tensor_cores(capability, width):
    with float32_products(torch.device("cuda"), "tf32"):
        reports = compile_all(capability, torch.float32, width)
    assert_fits(reports, capability, tensor_cores=True)


@pytest.mark.parametrize("capability", [80, 90])
def test_threads_of_a_warp_load_and_store_scores_of_neighboring_keys(capability):
    reports = compile_all(capability, torch.bfloat16, 48)
    assert_coalesced(reports)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "width"), list(itertools.product(SHARED_BYTES, (16, 64, 128))))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_single_tokens_need_two_kernels(capability, width, dtype):
    rows = [draw(B, count, H, width).to(dtype) for count in (1, K, K)]
    terms = [draw(*shape).to(dtype) for shape in ((H, K, width), (H, width), (H, width), (H, K))]
    with reporting(capability) as reports:
        attention_triton.attend_token(*rows, *terms, torch.arange(K), torch.tensor([K]), 4)
    assert list(reports) == ["token", "combine"]
    assert max(needs["spilled"] for needs in reports.values()) <= FEW_BYTES


def test_rows_of_heads_whose_width_is_not_a_multiple_of_16_are_loaded_in_wide_units():
    alone = {}
    for width in (40, 64):  # of the same tiles; 38 is padded to 40
        reports = compile_all(90, torch.bfloat16, width)
        alone[width] = {name: needs["single_numbers"] for name, needs in reports.items()}
    assert alone[40] == alone[64]  # position scores, whose rows are skewed


def test_the_softmax_accesses_rows_of_padded_logits_in_wide_units():
    logits = draw(64, 20_008).bfloat16()[:, :20_003]
    with reporting(90, normalizer_triton, ("accumulate", "gradient")) as reports:
        normalizer_triton.row_losses(logits, torch.arange(64), draw(64).float(), draw(64).float())
    # The logit of the target is loaded alone.
    assert {name: needs["single_numbers"] for name, needs in reports.items()} == {"accumulate": 1, "gradient": 0}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernels_of_the_softmax_spill_no_registers(capability, dtype):
    logits, chosen = draw(64, 4096).to(dtype), torch.arange(64)
    with reporting(capability, normalizer_triton, ("accumulate", "gradient")) as reports:
        normalizer_triton.row_losses(logits, chosen, draw(64).float(), draw(64).float())
    assert {name: needs["spilled"] for name, needs in reports.items()} == {"accumulate": 0, "gradient": 0}


@pytest.mark.parametrize("capability", [80, 90])
def test_updates_spill_no_registers_and_access_memory_in_wide_units(capability):
    weights, means, squares = draw(3, 5008).float()
    copies, gradients = draw(2, 5008)
    chunks, firsts = chunks_of([5008], weights.device)
    of_rule = [0.9, 0.999], 1e-8, 0.1
    with reporting(capability, updates_triton, UPDATES) as reports:
        updates_triton.adam(
            weights, gradients, means, squares, copies, chunks, draw(1).float(), *draw(2).float(), *of_rule, True
        )
        totals = updates_triton.lamb_moments(
            weights, gradients, means, squares, chunks, firsts, draw(1).float(), *of_rule
        )
        updates_triton.lamb(weights, means, squares, copies, chunks, totals, draw(1).float(), *of_rule[1:], 10.0)
    assert {name: needs["spilled"] for name, needs in reports.items()} == dict.fromkeys(UPDATES, 0)
