"""The CPU target: LLVM IR from kernels at stage lean."""
