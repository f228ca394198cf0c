"""Families and precisions of kernels by name: two tables of patterns, of which the first match counts.

Patterns are regular expressions that ignore case and are searched in the full name. The user's rules (``[families]`` of
the config file) are tried first. Unambiguous patterns precede words that many names contain. Words that programs of
other fields also use match only as whole words (``norm``, but not in ``normal_velocity``: `_words`), or only in names
that contain the name of a framework (``gather``, but not in ``pme_gather``: `_of_frameworks`).
"""

import re
from functools import lru_cache

GEMM, ATTENTION, CONVOLUTION = "GEMM", "attention", "convolution"
NORMALISATION, ELEMENTWISE, REDUCTION = "normalisation", "elementwise", "reduction"
COPY, EMBEDDING, OPTIMIZER, SORT = "copy/transpose", "embedding", "optimizer", "sampling/sort"
NCCL, COMMUNICATION, OTHER = "NCCL", "communication", "other"
FAMILIES = (
    GEMM, ATTENTION, CONVOLUTION, NORMALISATION, ELEMENTWISE, REDUCTION,
    COPY, EMBEDDING, OPTIMIZER, SORT, NCCL, COMMUNICATION, OTHER,
)  # fmt: skip
"""All families. Softmax is a normalisation; pooling and loss are reductions, casts copies, gathers embeddings."""

_EDGE = r"(?-i:(?<![A-Za-z])|(?![A-Za-z])|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]))"


def _words(pattern: str) -> str:
    """Let a pattern match whole words of a name; ``_``, ``::``, digits and changes of case separate words."""
    return f"{_EDGE}(?:{pattern}){_EDGE}"


_FRAMEWORK = r"\b(?:at|c10|caffe2|tf|phi|moe)::|" + _words(
    r"torch\w*|tensorflow|jax|xla|triton|onnx\w*|ort|paddle\w*|mxnet|mshadow|cudnn|nvinfer|trt|vllm|sglang|flashinfer"
    r"|megatron|apex|transformer_?engine|deepspeed|dgl|fbgemm|ggml|tvm"
)


def _of_frameworks(pattern: str) -> str:
    """Match common words only in names that also contain a machine-learning framework."""
    return rf"^(?=.*?(?:{_FRAMEWORK})).*?{_words(pattern)}"


NCCL_BACKEND, COPIES_BACKEND, OTHER_BACKEND = "NCCL", "NCCL copies", "other"
BACKENDS = (
    (NCCL_BACKEND, r"^(?:void |_Z\d+)?[nr]ccl"),
    ("NVSHMEM", r"nvshmem|(?:barrier|sync|alltoall|broadcast|fcollect|rdxn|reducescatter)(?:_all)?_on_stream"),
    ("DeepEP", r"(?:deep|hybrid)_ep(?:::|\d)|\buccl(?:::ep::|_)"),
    ("pplx", r"\bpplx::|a2a_(?:dispatch|combine)"),
    ("symmetric memory", r"\bsymmetric_memory::|\b(?:barrier|(?:put|wait)_signal)_kernel\b"),
    ("MSCCL++", r"mscclpp"),
    ("MSCCL", r"^(?:void )?msccl"),
    ("NCCL device API", r"(?:all_?(?:reduce|gather|to_?all)|reduce_?scatter|broadcast|dispatch|combine|barrier)\w*"
        r"(?:<[^(]*>)?\(.*\bnccl(?:DevComm|Window)"),
    ("UCX", r"\buc[pt]_|\bnixl"),
    ("user buffers", r"userbuffers"),
    ("custom all-reduce", r"(?:one_?shot|two_?shot|multimem|mnnvl|custom|fast|quick|trtllm)_?(?:pull_|push_)?all_?"
        r"(?:reduce|gather)|cross_device_(?:reduce|store)|all_?reduce_?fusion|quick_?reduce|multimem_all|\bintra_node_comm::"
        r"|multi_?gpu_?barrier_?kernel|lamport|(?:^|[^a-z])(?:all_?(?:reduce|gather|to_?all)|reduce_?scatter)_?"
        r"(?:kernel|one_?shot|two_?shot|naive|ring)"),
    ("custom all-to-all", r"(?:moe|mnnvl|ragged)_?(?:a2a|all_?to_?all)|\bmori::moe::|\b(?:inter|intra)_?node(?:_ll)?::"
        r"|(?:dispatch|combine)_?(?:inter|intra)_?node|(?:dispatch|combine)_?tokens"),
)  # fmt: skip
"""Libraries of communication kernels and patterns of their names. The first match counts, in DuckDB too."""

_LOOP = r"^(?:loop_|input_|wrapped_)?"  # prefixes of XLA's fusions
_OPTIMIZERS = _words(
    r"(?:fused_?)?(?:adam(?:w|ax)?|adagrad|rmsprop|sgd|adafactor|novograd)|optimizers?"
    r"|(?:lamb|lars|lion)(?=_?(?:cuda|stage|step|update|optim|functor))|(?:fused_?|multi_tensor_)(?:lamb|lars|lion)"
    r"|amp_(?:update|non_finite|foreach)\w*"
)
_FAMILY_RULES = (
    (NCCL, BACKENDS[0][1]),
    *((COMMUNICATION, pattern) for _, pattern in BACKENDS[1:]),
    # torch.compile: triton_KIND_fused_OPERATIONS_NUMBER
    (ATTENTION, r"^triton_tem_.*(?:attention|sdpa)"),
    (CONVOLUTION, r"^triton_tem_.*conv"),
    (GEMM, r"^triton_(?:tem|mm|bmm)_"),
    (OPTIMIZER, r"^triton_for_"),
    (NORMALISATION, r"^triton_(?:red|per|spl)_.*(?:norm|softmax|rsqrt)"),
    (REDUCTION, r"^triton_(?:red|per|spl)_"),
    (EMBEDDING, r"^triton_poi_fused_embedding"),
    (COPY, r"^triton_poi_fused_(?:_?(?:to_copy|clone|cat|stack|transpose|permute|copy_?|convert_element_type)_)+\d*$"),
    (ELEMENTWISE, r"^triton_poi_"),
    # XLA: loop_add_fusion_3, input_reduce_fusion, wrapped_transpose, gemm_fusion_dot_12
    (GEMM, r"^(?:triton_)?gemm_fusion|^triton_gemm"),
    (NORMALISATION, r"^triton_softmax"),
    (COPY, _LOOP + r"(?!(?:dynamic|update)(?:_\d+)*(?:\(|$))"
        r"(?:(?:transpose|copy|concatenate|dynamic|update|slice|broadcast|pad|reverse|convert|bitcast)_?)+"
        r"(?:_?fusion)?(?:_\d+)*(?:\(|$)"),
    (EMBEDDING, _LOOP + r"(?:\w+_)?(?:gather|scatter)(?:_\w*)?fusion"),
    (REDUCTION, _LOOP + r"(?:\w+_)?reduce(?:_\w*)?fusion"),
    (ELEMENTWISE, r"^(?:loop|input)_\w*fusion|^fusion(?:_\d+)*$|^wrapped_"),
    # PyTorch's generic kernels: template arguments name the operation
    (SORT, r"distribution_elementwise"),
    (EMBEDDING, r"index_elementwise_kernel|scatter_gather_elementwise"),
    (COPY, r"elementwise_kernel.*?(?:copy_kernel|CopyFunctor|LoadWithCast.*identity)"),
    (ELEMENTWISE, r"elementwise_kernel\w*<"),
    (REDUCTION, r"(?<![a-z])reduce_kernel<(?!.*cublas)"),
    (OPTIMIZER, r"multi_tensor_apply.*" + _OPTIMIZERS),
    (REDUCTION, r"multi_tensor_apply.*norm"),
    (COPY, r"multi_tensor_apply.*copy"),
    (ELEMENTWISE, r"multi_tensor_apply"),
    (OPTIMIZER, _OPTIMIZERS),
    # Kernels around convolutions, such as cuDNN's
    (COPY, r"nchw_?to_?nhwc|nhwc_?to_?nchw|reshape_and_cache|concat_and_cache|append_?paged"),
    (EMBEDDING, r"(?<!rotary_)(?<!rotary)embedding"),
    (SORT, _words(r"(?:[sm]b)?top_?[kp]") + r"|sampling::|bitonic|radix|merge_?sort|segmented_?sort|moe_align"),
    # Kernels with most of the arithmetic
    (NORMALISATION, r"^(?:void )?(?:\w+::)*\w*(?:layer_?norm|rms_?norm|softmax)"),
    (ATTENTION, r"flash_?(?:fwd|bwd|attn|attention|fprop|bprop)|fmha|sdpa|attention|attn|paged_?kv|(?<![a-z])mha"
        r"|flash::|_mla_|flashmla|mqa_logits|selective_scan|chunk_(?:scan|state|fwd|bwd)|mamba|wkv|delta_rule"
        r"|state_passing|(?:prefill|decode)_?with\w*kv_?cache|merge_?states|_fwd_(?:grouped_)?kernel_stage\d"),
    (CONVOLUTION, _words(r"(?:de|dw|sp|depthwise)?conv(?:s|nd|transpose|ol[uv]\w*)?|fprop"
        r"|(?<!gemm)(?<!gemm_)[wd]grad(?!_?(?:grouped_?)?gemm)")
        + r"|implicit_?gemm|winograd|im2col|col2im|[shd]cudnn|\d+cudnn|cudnn.*fft|fft\dd_[rc]2[rc]"
        r"|flip_filter|computeB?OffsetsKernel"),
    (GEMM, r"gemm|gemv|nvjet|matmul|(?<!qm_)(?<![a-z])b?mm_|mul_mat|splitk_?reduce|cublas|marlin|awq|gptq|fused_moe"
        r"|lora_(?:shrink|expand)|(?<![a-z])[bs]gmv|cutlass(?!_kernel|::(?:half|bfloat16|float_e\w+)_t)"
        r"|compute_gemm_pointers|(?<![a-z])(?:trsm|syrk|dot_kernel)"),
    # Words
    (SORT, _words(r"(?:arg|quick|counting)?_?sort(?:ed|ing)?|unique_?by_?key")
        + r"|multinomial|device_?scan|tensor_kernel_scan|device_?select|cumsum|prefix_?sum|histogram|curand"
        r"|fused_gate(?!d)|rejection_\w*sampl|sample_recovered|"
        + _of_frameworks(r"(?<!up)(?<!down)(?<!grid_)sampl(?:e[sdr]?|ing)|random\w*|rng")),
    (NORMALISATION, r"soft_?max|(?:batch|group|layer|rms|instance|weight|response|qk)_?norm|(?<![a-z])bn_(?:fw|bw)"
        r"|rowwise_?moments|gammabeta|welford|" + _words(r"norm_(?:fwd|bwd|forward|backward)")
        + "|" + _of_frameworks(r"normali[sz]\w*")),
    (REDUCTION, r"reduc(?:e(?!d)|ing|tion)|(?:max|avg|average)_?pool|pooling|cross_?entropy|argm(?:ax|in)|lpnorm|"
        + _words(r"amax|finalize_?moe|(?<!rope_)norm|sum|(?:nll|mse|bce|ctc|kl|l1|hinge|huber|focal|margin)_?loss"
        r"|loss_(?:fwd|bwd|forward|backward|grad)|mean_?(?:ops|var|std|kernel|squares?)|pool_?(?:fw|bw|forward|backward)?")),
    (EMBEDDING, _words(r"index_?(?:select|put|func)|gather_?nd|scatter_?(?:add|nd)|krn_partial|compute_grad_weight")
        + "|" + _of_frameworks(r"indexing|gather|scatter")),
    (COPY, r"transpose|catarray|expand_?input_?rows|concat|memcpy|memset|deinterleave|swap_blocks|"
        + _words(r"copy|cpy|permute\w*|flip_?(?:kernel|cuda)|(?:un)?pad(?:ding)?|tri[lu]")
        + "|" + _of_frameworks(r"roll|cast|slice|stack")),
    (ELEMENTWISE, r"elementwise|pointwise|dropout|act_and_mul|sigmoid|rotary|axpy|vec(?:tor)?_?add|scal_kernel"
        r"|CudaCodeGen|(?:set|scale|add)(?:packed|generic)?_?tensor(?!_?(?:field|product))|upsampl|op_?tensor|"
        + _words(r"(?:leaky_?|p|s|g|r|c|bias_?)?relu|d?[gscr]elu|silu|(?:swi?|ge|re)glu|activation(?!_?energy)|tanh"
        r"|rope|gated_?act|(?:de|re|fake_?)?quant(?:i[sz]\w*)?|bias_?(?:add|act|dropout|grad)|add_?bias|bias_?n[ch]\w*"
        r"|mask(?:ed)?_?(?:fill|scale|select)"
        r"|(?:unary|binary)_?(?:op|kernel|functor)|fused_(?:add|sub|mul|div|neg|pow|exp|log|r?sqrt|tanh|where|cast|cat)"
        r"|op_(?:add|sub|mul|div)")
        + rf"|{_EDGE}(?:add|mul|scale|fill)(?=(?:_?(?:kernel|functor|op|scalar|[fi]\d+))?(?:\W|\d|$))"),
)  # fmt: skip
"""Family and pattern; the first match counts."""

_PRECISION_RULES = (
    ("", BACKENDS[0][1]),  # such a name may differ from what ran, see questions.nccl.names
    ("FP4", r"e2m1|nv_?fp4|mxfp4"),
    ("FP8", r"e4m3|e5m2|fp8|float8|nvjet_(?:sm\d+_)?q"),
    ("FP6", r"_e[23]m[23]|fp6_|float6_"),
    ("INT8", r"(?<!u)int8|imma|i8i8|igemm|i(?:8816|8832|16816|16832)gemm|tensorop_i\d|s8_s8"),
    ("TF32", r"tf(?:loat)?32"),
    ("BF16", r"bf16|bfloat16|nvjet_(?:sm\d+_)?t"),
    # hmma_fp32: FP16 matrices, FP32 sums
    ("FP16", r"f(?:p|loat)?16|half(?!_?step|way|space)|hmma_fp|nvjet_(?:sm\d+_)?h|(?<![a-z])h\d*(?:gemm|cudnn)|hcudnn"),
    ("TF32", r"s1688(?:gemm|cudnn|fprop|dgrad|wgrad)"),
    ("FP64", r"double|f(?:p|loat)?64|(?<![a-z])d\d*(?:gemm|cudnn)|(?<![a-z])z\d*gemm"),
    ("FP32", r"float|fp32|f32|(?<![a-z])[sc]\d*(?:gemm|cudnn)|convolve_[sc]gemm"),
)
"""Precision of the inputs and pattern. Tensor cores compute TF32 from FP32. Other names have no precision."""

PRECISIONS = tuple(dict.fromkeys(precision for precision, _ in _PRECISION_RULES if precision))

_MAX_LENGTH = 8192
"""The number of characters searched: real names are shorter, and hostile names would take quadratic time."""

Rules = tuple[tuple[str, str], ...]
"""Pairs: a family, precision or library, and the pattern of its names."""


@lru_cache(maxsize=8)
def _compiled(rules: Rules) -> list[tuple[str, re.Pattern[str]]]:
    return [(word, re.compile(pattern, re.IGNORECASE)) for word, pattern in rules]


def _first_match(rules: Rules, name: str) -> str | None:
    return next((word for word, pattern in _compiled(rules) if pattern.search(name, 0, _MAX_LENGTH)), None)


@lru_cache(maxsize=16384)
def family_of(name: str, user_rules: Rules = ()) -> str:
    """Return the family of a kernel by its full name; ``user_rules`` are tried first."""
    return (_first_match(user_rules, name) if user_rules else None) or _first_match(_FAMILY_RULES, name) or OTHER


@lru_cache(maxsize=16384)
def is_communication(name: str, user_rules: Rules = ()) -> bool:
    """Return whether a kernel's family is ``COMMUNICATION``, without testing other families."""
    user_family = _first_match(user_rules, name) if user_rules else None
    return user_family == COMMUNICATION if user_family else _first_match(BACKENDS, name) not in (None, NCCL_BACKEND)


def backend_of(name: str) -> str:
    """Return the library of a communication kernel, from `BACKENDS`, or ``other`` if only a user's rule matches."""
    return _first_match(BACKENDS, name) or OTHER_BACKEND


_SCALAR = re.compile(r"(?:^|(?<=, ))(?:double|float)(?=[,)])")


@lru_cache(maxsize=16384)
def precision_of(name: str) -> str | None:
    """Return the precision of a kernel's inputs by its name, ignoring scalar arguments; ``None`` if unknown."""
    head, bracket, arguments = name.rpartition("(")
    return _first_match(_PRECISION_RULES, head + bracket + _SCALAR.sub("", arguments) if bracket else name) or None
