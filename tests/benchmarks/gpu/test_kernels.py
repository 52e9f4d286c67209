"""Which attention kernel the names of kernels betray."""

import pytest

from benchmarks.gpu.kernels import classify


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
