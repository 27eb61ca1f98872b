"""The CUDA target: from stage lean to CUDA C++, to a cubin, to a launch."""
