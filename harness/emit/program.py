"""A recording as CUDA C++: buffers, a function a program, and a main that does what the decode did."""

import re
from collections.abc import Iterator, Sequence

from harness.cuda.compiler import CONTRACT_FLAGS
from harness.emit.recording import Op, Recording, Run, Told, Write
from harness.emit.sources import namespace, sources
from kernels.entry import Scalar
from kernels.plan import Launch, Plan, Ref
from oracle.errors import LanelockError

LONGEST_PERIOD = 3  # programs of one step: draft, commit, verify

HEAD = """\
// Written by `lanelock emit`: the plan of a decode as one program, with its kernels. {title}
//
//   nvcc {flags} -diag-suppress 177 -arch={arch} -o program {name}.cu && ./program {name}.bin
//
// It prints a line of tokens for each prompt; times go to stderr. The file beside it holds all bytes that the program
// writes to the device, in the order in which it does.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

"""

RUNTIME = """\
namespace program {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\\n", what, cudaGetErrorString(code));
  std::exit(1);
}

// an address that becomes a pointer of any type
struct Place {
  char* at;
  template <class T>
  operator T*() const { return reinterpret_cast<T*>(at); }
};

constexpr std::size_t DEFAULT_SHARED = 48 * 1024;  // of a block, without asking

template <class... P, class... A>
void launch(const char* label, void (*kernel)(P...), dim3 grid, dim3 block, unsigned shared, unsigned cluster,
            bool early, cudaStream_t stream, A... args) {
  cudaFuncAttributes own;
  check(cudaFuncGetAttributes(&own, kernel), label);
  // a kernel within the default lives on the L1, and asks for none of the memory that the two are divided from
  if (shared + own.sharedSizeBytes > DEFAULT_SHARED) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), label);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100), label);
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {grid, block, shared, stream, attributes, 0};
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
  }
  if (early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), label);
}

std::FILE* input;

// the next bytes of the file, to a buffer
void write(char* to, std::size_t count) {
  std::vector<char> bytes(count);
  if (std::fread(bytes.data(), 1, count, input) != count) {
    std::fprintf(stderr, "the file of bytes ends too early\\n");
    std::exit(1);
  }
  check(cudaMemcpy(to, bytes.data(), count, cudaMemcpyHostToDevice), "write");
}

// one graph of the launches of a step, replayed
template <class Body>
void repeat(int count, cudaStream_t stream, Body body) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  cudaEvent_t begin, end;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  body();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&ready, graph, 0), "graph");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  check(cudaEventRecord(begin, stream), "event");
  for (int i = 0; i < count; ++i) check(cudaGraphLaunch(ready, stream), "replay");
  check(cudaEventRecord(end, stream), "event");
  check(cudaEventSynchronize(end), "steps");
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, begin, end), "event");
  std::fprintf(stderr, "%d steps, %.4f ms each\\n", count, ms / count);
}

void tell(const char* history, const char* flag, int count) {
  std::vector<int> tokens(count);
  int fault = 0;
  check(cudaMemcpy(tokens.data(), history, 4 * tokens.size(), cudaMemcpyDeviceToHost), "read");
  check(cudaMemcpy(&fault, flag, 4, cudaMemcpyDeviceToHost), "read");
  if (fault == 1 || fault == 2) std::fprintf(stderr, "flag %d: the logits hold a NaN, or nothing finite\\n", fault);
  for (int i = 0; i < count; ++i) std::printf("%s%d", i ? "," : "", tokens[i]);
  std::printf("\\n");
}
"""


def program(recording: Recording, name: str, arch: str, title: str) -> tuple[str, Iterator[bytes]]:
    """The text of `name`.cu and the bytes of `name`.bin. Raises LanelockError for a plan of the host's kernels.

    Error:  none: the kernels are the plan's, and so are their shapes and their order.
    """
    if not arch.startswith("sm_"):
        raise LanelockError(f"emit: {arch} is no GPU that nvcc compiles for")
    plan = recording.plan
    used = {item.instance.kernel.source for items in plan.programs.values() for item in items}
    flags = " ".join(CONTRACT_FLAGS)
    parts = [HEAD.format(title=title, flags=flags, arch=arch, name=name), sources(used), RUNTIME, *_buffers(plan)]
    parts += [_function(plan, name, items) for name, items in plan.programs.items()]
    parts.append("}  // namespace program\n\n" + _main(recording.ops))
    return "\n".join(parts), (op.data.tobytes() for op in recording.ops if isinstance(op, Write))


def identifier(kind: str, name: str) -> str:
    """A name of the plan as one of C++: `buffer_chunk_logits` and `run_prefill_first` are of two kinds."""
    return f"{kind}_" + re.sub(r"\W", "_", name)


def _buffers(plan: Plan) -> Iterator[str]:
    yield "".join(f"char* {identifier('buffer', b.name)};\n" for b in plan.buffers.values())
    lines = [f"  allocate({identifier('buffer', b.name)}, {b.nbytes}u);\n" for b in plan.buffers.values()]
    yield (
        "// fresh memory is poison: a NaN, or -1\n"
        "void allocate(char*& buffer, std::size_t count) {\n"
        '  check(cudaMalloc(&buffer, count ? count : 1), "allocation");\n'
        '  check(cudaMemset(buffer, 0xFF, count), "allocation");\n}\n\n'
        f"void allocate_all() {{\n{''.join(lines)}}}\n"
    )


def _function(plan: Plan, name: str, items: Sequence[Launch]) -> str:
    return f"void {identifier('run', name)}(cudaStream_t stream) {{\n{''.join(_launch(plan, i) for i in items)}}}\n"


def _launch(plan: Plan, item: Launch) -> str:
    kernel, g = item.instance.kernel, item.geometry
    grid, block = ("{" + ", ".join(f"{n}u" for n in size) + "}" for size in (g.grid, g.block))
    args = [_argument(plan, declared, given) for declared, given in zip(kernel.args, item.args, strict=True)]
    where = f"dim3{grid}, dim3{block}, {g.smem}u, {g.cluster}u, {str(kernel.dependent).lower()}, stream"
    symbol = f"{namespace(kernel.source)}::{item.instance.expression}"
    return f'  launch("{item.label}", {symbol}, {where},\n         {", ".join(args)});\n'


def _argument(plan: Plan, declared: object, given: Ref | int | float | None) -> str:
    if given is None:
        return "nullptr"
    if isinstance(given, Ref):
        size = plan.buffers[given.buffer].nbytes // max(plan.buffers[given.buffer].elements, 1)
        offset = f" + {given.offset * size}ll" if given.offset else ""
        return f"Place{{{identifier('buffer', given.buffer)}{offset}}}"
    if isinstance(declared, Scalar) and declared.ctype == "float":
        return f"{float(given).hex()}"
    return str(given)  # a literal in C++ is as wide as its value needs


def _main(ops: Sequence[Op]) -> str:
    body = "".join(f"  {line}\n" for line in _statements(ops))
    return (
        "int main(int count, char** words) {\n  using namespace program;\n"
        '  input = count == 2 ? std::fopen(words[1], "rb") : nullptr;\n'
        "  if (!input) {\n"
        '    std::fprintf(stderr, "usage: %s FILE.bin, the file that was written beside this source\\n", words[0]);\n'
        "    return 2;\n  }\n"
        "  cudaStream_t stream;\n"
        '  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");\n'
        f"  allocate_all();\n{body}  return 0;\n}}\n"
    )


WAIT = 'check(cudaStreamSynchronize(stream), "wait");'


def _statements(ops: Sequence[Op]) -> Iterator[str]:
    at = 0
    while at < len(ops):
        op = ops[at]
        if isinstance(op, Run):
            period, times = _repeats(ops, at)
            block = [o.program for o in ops[at : at + period] if isinstance(o, Run)]
            calls = " ".join(f"{identifier('run', name)}(stream);" for name in block)
            yield calls if times == 1 else f"repeat({times}, stream, [&] {{ {calls} }});"
            yield WAIT
            at += period * times
            continue
        if isinstance(op, Write):
            yield f"write({identifier('buffer', op.buffer)} + {op.offset}u, {op.data.size}u);"
        elif isinstance(op, Told):
            flag = f"buffer_flags + {4 * op.lane}"
            yield f"tell(buffer_history + {4 * op.first}ll, {flag}, {op.count});  // prompt {op.request}"
        at += 1


def _repeats(ops: Sequence[Op], at: int) -> tuple[int, int]:
    """Period and times of the longest repetition of runs that begins here."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        block = [o.program if isinstance(o, Run) else None for o in ops[at : at + period]]
        times = 1
        while [getattr(o, "program", None) for o in ops[at + times * period : at + (times + 1) * period]] == block:
            times += 1
        if None not in block and len(block) == period and (times > 1) and period * times > best[0] * best[1]:
            best = (period, times)
    return best
