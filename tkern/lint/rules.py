"""What Taichi 1.7.4 does with a kernel's text that no author wants: the rules that ``tkern lint`` reads for.

Each was met where ``seen`` says, by a kernel of a few lines: ``tests/lint_faults.py`` and ``lint_faults_gpu.py`` have
one for each.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU", "GPU", "RULES", "Rule", "rule_of"]

CPU = frozenset({"cpu"})
GPU = frozenset({"metal", "vulkan", "cuda"})
_SPIRV = frozenset({"metal", "vulkan"})


@dataclass(frozen=True)
class Rule:
    """One rule: ``what`` Taichi does, the ``cure``, where it was ``seen``, and the backends on which it ``bites``.

    ``ends`` names the backends whose process ends, past any ``except``; ``said`` is a part of what Taichi says when it
    refuses such a kernel with an error.
    """

    name: str
    what: str
    cure: str
    seen: str
    bites: frozenset[str] = CPU | GPU
    ends: frozenset[str] = frozenset()
    said: tuple[str, ...] = ()


_ALL = (
    Rule(
        "vector-math",
        "On a CPU an element is a vector of 16, and Taichi has no such operation on vectors: the process ends.",
        "t.exp(v) for eᵛ; 0.0 - v for -v; ti.select(v < 0.0, 0.0 - v, v) for |v|; v * v and ti.sqrt(v) for powers.",
        "cpu: the process ends (exp, log, sin, cos, tan, tanh, asin, acos, atan2, abs, rsqrt, pow, minus)",
        bites=CPU,
        ends=CPU,
    ),
    Rule(
        "vector-condition",
        "On a CPU an element is a vector of 16, on which Python's if, while and x if c else y cannot branch.",
        "ti.select(condition, one, other), which chooses for each of the 16.",
        "cpu: TaichiTypeError, TaichiSyntaxError",
        bites=CPU,
        said=("`if` conditions must be an integer; found [Tensor", "element-wise select operation on Taichi vectors"),
    ),
    Rule(
        "array-index",
        "t.Array is an array of 16-vectors on a CPU and of floats on a GPU: x[i] is not the same element, and past its "
        "end the process.",
        "row.read(x).at(c), row.store(y, c, v), row.load_scalar(a), row.store_scalar(a, v).",
        "cpu: memory past the array is written, the process ends (segmentation fault); vulkan: one float",
        bites=CPU,
        ends=CPU,
    ),
    Rule(
        "shape-range",
        "The outermost range of a kernel is computed anew on the device, and Taichi makes no SPIR-V of // there.",
        "a scalar argument n of the kernel and range(n // k), or >> for a power of two.",
        "vulkan: RuntimeError [spirv_codegen.cpp:visit@1281] Not supported",
        bites=_SPIRV,
        said=("spirv_codegen.cpp:visit@1281",),
    ),
    Rule(
        "shared-add",
        "+= on an element of a SharedArray is an atomic, which SPIR-V does not have for floats in shared memory.",
        "shared[i] = shared[i] + v, with a barrier where another lane reads it.",
        "vulkan: RuntimeError at_buffer failed",
        bites=_SPIRV,
        said=("at_buffer failed",),
    ),
    Rule(
        "shared-vector",
        "A SharedArray holds numbers only: one of vectors is no SPIR-V, and on a CPU it ends the process.",
        "a SharedArray of ti.f32 with one more axis, or k times as many elements.",
        "vulkan: RuntimeError Type [Tensor (4) f32] not supported; cpu: the process ends",
        ends=CPU,
        said=("get_primitive_type@330] Type [Tensor",),
    ),
    Rule(
        "atomic-add",
        "+= on an array's element, or on a variable from outside the parallel loop, is an atomic: its order differs "
        "from run to run, and so do the bits; on Metal one of floats is a loop of compare-and-swap.",
        "one owner for each output: row.sum(total), p.column_sums(partial, cols), a[i] = a[i] + v where one program "
        "owns it.",
        "cpu, vulkan: six runs of a sum gave five and six different answers",
    ),
    Rule(
        "divergent-barrier",
        "A barrier that not every lane of a program passes, or not as often, is undefined: results are wrong, or there "
        "are none.",
        "move the barrier (block.sync, row.sum, row.sum2, row.max, finish) out of the branch, and branch around what "
        "is read and written.",
        "vulkan: 0 is read where 3 was written",
        bites=GPU,
    ),
    Rule(
        "bool-bits",
        "& and | of two conditions are bit operations on booleans, which is no valid SPIR-V: a driver may do anything.",
        "safe.both(a, b), safe.either(a, b) of tkern.lang.safe; and and or, where no vector is.",
        "spirv-val: OpBitwiseAnd on %bool (tkern msl); vulkan: Mesa's lavapipe lets it pass",
        bites=_SPIRV,
    ),
    Rule(
        "nan-compare",
        "x != x is false for a NaN on every backend, and x == x too: both compare in order.",
        "safe.is_nan(x) of tkern.lang.safe, which looks at the bits.",
        "cpu, vulkan: both are 0 for a NaN",
    ),
    Rule(
        "not-finite",
        "Metal always compiles with fast-math, as if there were no infinity and no NaN: a test for one is folded away.",
        "safe.LOWEST where something is hidden, safe.is_nan(x); or a number that the caller hands over.",
        "in the MSL only (tkern msl, rule infinities); cpu and vulkan are started without fast-math and are right",
        bites=frozenset({"metal"}),
    ),
    Rule(
        "unsupported-type",
        "Metal has no float64, and Taichi's SPIR-V no exp of it; an array of ti.u1 is "
        "read there as one of 4-byte integers.",
        "ti.f32; ti.u8 or ti.i32 for an array of conditions.",
        "vulkan: RuntimeError Exp(27) does not 64bits operation, [T, F, T] read as [1, 1, 1]; Metal's capabilities: "
        "RuntimeError Type f64 not supported (tkern msl)",
        bites=_SPIRV,
        said=("does not 64bits operation", "Type f64 not supported"),
    ),
    Rule(
        "subgroup",
        "ti.simt.subgroup ends the process on a CPU and is a stub in part; ti.simt.warp returns 0 there, and is CUDA's "
        "alone.",
        "row.sum, row.sum2, row.max, or a tree over a SharedArray.",
        "cpu: the process ends (subgroup), 0 in silence (warp); vulkan: RuntimeError (warp, shuffle_xor)",
        ends=CPU,
        said=("LLVMRuntime function subgroup", "spirv_ir_builder.cpp:cast@1151"),
    ),
    Rule(
        "thread-index",
        "ti.global_thread_idx is a CPU's and CUDA's, block.thread_idx Vulkan's and Metal's: elsewhere an error.",
        "p.id of p = t.program(i, programs); or the low bits of the outermost index, i & (lanes - 1).",
        "vulkan: RuntimeError (global_thread_idx), a segmentation fault of Mesa's lavapipe (block.thread_idx); cpu: "
        "ValueError (block.thread_idx)",
        bites=GPU,
        said=("ti.thread_idx() is only available in", "ti.block.thread_idx is not"),
    ),
    Rule(
        "gpu-words",
        "Shared memory and barriers (ti.simt.block) are there on a GPU alone; on a CPU they are an error, or end the "
        "process.",
        "the words of tkern.lang, which lower to them; a module for GPUs alone is named …_gpu.py.",
        "cpu: SharedArray ends the process, block.sync and block.mem_sync are a ValueError",
        bites=CPU,
        ends=CPU,
        said=("ti.block.",),
    ),
    Rule(
        "serial-loop",
        "Only an outermost loop is parallel: under an if or a while of the kernel it runs on one thread.",
        "the loop outermost and the if inside it; or the choice in Python, between two kernels.",
        "cpu: one thread of two ran all 64 programs",
    ),
    Rule(
        "print-assert",
        "print is dropped on a GPU, and assert is not checked on any backend as tkern starts it.",
        "write what is to be seen into an array; check in Python, before the launch.",
        "cpu: assert passes what is false; vulkan: print says nothing, assert passes",
    ),
    Rule(
        "late-annotations",
        "from __future__ import annotations turns annotations into texts, and Taichi refuses the kernel.",
        "leave the import out of modules with kernels.",
        "cpu, vulkan: TaichiSyntaxError Invalid type annotation",
        said=("Invalid type annotation",),
    ),
    Rule(
        "allow",
        "A comment '# tkern: allow RULE why' must name a rule, say why, and stand at a finding.",
        "correct it, or remove it.",
        "tkern lint itself",
    ),
)

# The rules by name.
RULES = {rule.name: rule for rule in _ALL}


def rule_of(said: str) -> Rule | None:
    """Return the rule that Taichi met when it ``said`` this, where its words tell."""
    return next((rule for rule in _ALL if any(part in said for part in rule.said)), None)
