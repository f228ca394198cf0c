"""Smart names keep the parts that distinguish kernels, and only these."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import native, native_count, real_exports

from nsystui.base.kernel_families import COMMUNICATION, FAMILIES, OTHER, family_of, is_communication, precision_of
from nsystui.base.kernel_names import function_name, smart_names

_AT = "void at::native::"


@pytest.mark.parametrize(("full", "smart"), [
    ("saxpy(double *, double *, int)", "saxpy"),
    ("jacobi_kernel(float*, float const*, int)", "jacobi"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_SendRecv"),
    ("triton_red_fused_native_layer_norm_0", "triton_red_fused_native_layer_norm_0"),
    (f"{_AT}vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float, float, "
     "at::native::binary_internal::DivFunctor<float>>, at::detail::Array<char *, (int)3>>(int, T2, T3)",
     "elementwise<DivFunctor<float>>"),
    (f"{_AT}(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float)",
     "layer_norm<bf16, float>"),
    (f"{_AT}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
     "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::"
     "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T1, T2)",
     "elementwise<direct_copy_kernel_cuda λ(float)>"),
    (
        f"{_AT}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::neg_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(double)#1}>("
        "at::TensorIteratorBase&)::{lambda(int)#1}>(int, {lambda(int)#1})",
        "elementwise<neg_kernel_cuda λ(double)>",
    ),
    (f"{_AT}reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
     "float, float>, unsigned int, float, (int)4, (int)4>>(T3)",
     "reduce<MeanOps<float>>"),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)", "cutlass sgemm_128x64_8x5_nt"),
    ("void xmma::strided_dgrad::kernel<xmma::strided_dgrad::Kernel_traits<xmma::Ampere_traits, "
     "xmma::Cta_tile<xmma::Ampere, (int)64, (int)128, (int)32, (int)1>, xmma::Gmem_tile>>(T1::Params)",
     "strided_dgrad::kernel<64x128x32, Ampere_traits>"),
    ("sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_warpsize"
     "2x2x1_g1_tensor16x8x16_execute_kernel_cudnn",
     "sm80_xmma_fprop 64x32x64 stage5 f16f16_f16f32_f32_nhwckrsc_nhwc"),
])  # fmt: skip
def test_a_name_is_reduced_to_what_tells_kernels_apart(full, smart):
    assert smart_names([full]) == {full: smart}


def test_names_that_would_be_alike_tell_their_numbers():
    kinds = [(kind, width) for kind in ("", "unrolled_") for width in (2, 4)]
    names = {
        f"void {kind}elementwise_kernel<(int){width}, MulFunctor<float>>(T2)":
        f"{kind}elementwise<MulFunctor<float>, {width}>" for kind, width in kinds
    }  # fmt: skip
    assert smart_names(list(names)) == names


def test_names_that_only_differ_in_their_arguments_are_numbered_in_order():
    names = ["copy(int *)", "copy(float *)"]
    assert smart_names(names) == {"copy(int *)": "copy #2", "copy(float *)": "copy #1"}
    assert len(set(smart_names([*names, "copy #1"]).values())) == 3  # a kernel that is called so keeps its name


@pytest.mark.campaign
@given(st.lists(st.text("ab:<>()[]{},#λ 1&*~-=!\x00") | st.text()))
def test_any_names_stay_different(names):
    found = smart_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(found)
    assert all(text for name, text in found.items() if name)


@pytest.mark.parametrize("export", real_exports(of_every_kind=True), ids=lambda path: path.stem)
def test_no_two_kernels_of_a_real_export_look_alike(export):
    if not native_count(export, "CUPTI_ACTIVITY_KIND_KERNEL"):
        pytest.skip("no kernels")
    query = "SELECT value FROM StringIds WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    names = [name for (name,) in native(export, query)]
    found = smart_names(names)
    assert len(set(found.values())) == len(names)
    assert len({text[:60] for text in found.values()}) >= 0.8 * len(names)


@pytest.mark.parametrize(("full", "short"), [
    ("_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault"),
    ("[kernel.kallsyms]", "[kernel.kallsyms]"),
    ("at::_ops::pin_memory::call(at::Tensor const&, c10::optional<c10::Device>)", "pin_memory::call"),
    ("at::native::(anonymous namespace)::copy_kernel(at::TensorIterator&, bool)", "native::copy_kernel"),
    ("c10::impl::OperatorEntry::lookup(c10::DispatchKeySet) const", "OperatorEntry::lookup"),
    ("void c10::function_ref<void (char**)>::callback_fn<at::Loop<at::direct_copy_kernel(at::Base&)::"
     "{lambda()#1}::operator()() const::{lambda(float)#2}> >(long, char**)",
     "function_ref::callback_fn<direct_copy_kernel>"),
])  # fmt: skip
def test_a_function_of_the_cpu_keeps_its_class_or_namespace(full, short):
    assert function_name(full) == short


KNOWN = (Path(__file__).parent / "kernel_families.txt").read_text().splitlines()
"""Lines of full name, family and precision: ``-`` if the name shows none, nothing if it is not tested."""


@pytest.mark.parametrize("line", KNOWN, ids=lambda line: line[:40])
def test_a_name_has_its_family_and_precision(line):
    name, family, precision = line.rsplit("|", 2)
    assert family_of(name) == family
    assert family in FAMILIES
    assert is_communication(name) == (family == COMMUNICATION)
    if precision:
        assert (precision_of(name) or "-") == precision


def test_a_users_rules_come_first():
    own = (("attention", "my_kern"), ("other", "gemm"))
    assert family_of("my_kernel_gemm(int *)", own) == "attention"
    assert family_of("volta_sgemm_128x64_nt", own) == "other"
    assert family_of("volta_sgemm_128x64_nt") == "GEMM"
    assert is_communication("halo_exchange", (("communication", "halo"),))
    assert not is_communication("multimem_all_reduce", (("attention", "multimem"),))


def test_a_name_of_any_length_has_a_family():
    assert family_of("elementwise_kernel" * 6_000) == "elementwise"
    assert precision_of("(" * 100_000) is None


def test_hardly_any_kernel_time_of_programs_with_a_framework_is_of_no_family():
    """Frameworks: PyTorch, cuDNN, NCCL."""
    query = """SELECT value, time FROM StringIds JOIN (SELECT demangledName, sum("end" - start) AS time
        FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1) ON id = demangledName"""
    shares = {}
    for path in real_exports(of_every_kind=True):
        rows = native(path, query) if native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") else []
        if any(re.search("at::native|cudnn|nccl", name) for name, _ in rows):
            unknown = sum(time for name, time in rows if family_of(name) == OTHER)
            shares[path.stem] = unknown / sum(time for _, time in rows)
    if not shares:
        pytest.skip("the real exports are not on this machine")
    assert len(shares) >= 7
    assert {name: share for name, share in shares.items() if share > 0.03} == {}
