"""The CUDA target: from stage lean to CUDA C++, to a cubin, to something that is launched."""
