"""Which attention kernel the names of kernels betray."""

import pytest
from tests.benchmarks.gpu.conftest import RunPart

from gpu.kernels import classify, kernels_said


@pytest.mark.parametrize(
    ("kernels", "kind"),
    [
        (["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x64"], "cuDNN"),
        (["void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"], "FlashAttention"),
        (["void attention_kernel_batched_impl<AttentionKernel<cutlass::half_t, Sm80>>"], "memory-efficient"),
        (["fmha_v2_flash_attention_fp16_64_64_S_64_sm80_kernel_nl"], "TensorRT"),
        (["ampere_h16816gemm_128x128", "void SoftmaxKernelSmall<__half>"], "unfused"),
        (["ampere_h16816gemm_128x128", "void cudnn::cnn::im2col4d_kernel"], ""),
        ([], ""),
    ],
)
def test_names_tell_the_kind(kernels: list[str], kind: str) -> None:
    assert classify(kernels) == kind


def test_every_kernel_that_was_named_counts_and_silence_is_told() -> None:
    said = "Operator=A SdpaKernel=CUDNN_FLASH\nOperator=A SdpaKernel=MATH\nOperator=A SdpaKernel=MATH\n"

    assert kernels_said(said) == "CUDNN_FLASH, MATH"
    assert kernels_said("a warning") == "nothing"


def test_every_form_has_a_row_and_those_that_run_are_right(run: RunPart) -> None:
    rows = run("kernels").of("form")

    assert {row["form"].split(",")[0] for row in rows} == {
        "MultiHeadAttention",
        "contrib Attention",
        "Attention (opset 23)",
        "Attention (opset 24)",
        "explicit",
    }
    served = {"operator": "contrib Attention", "layout": "projected", "mask": "lengths"}
    assert any(row.items() >= served.items() for row in rows)  # it is what a target looks at
    broken = [row for row in rows if "problem" in row]
    assert {row["layout"] for row in broken} == {"packed"}  # the CPU has no kernel for it
    assert {row["said"] for row in rows if row["operator"] in {"Attention", "explicit"}} == {None}
    for row in rows:
        if row not in broken:
            assert row["difference"] < 1e-5
            assert row["ms"] > 0
