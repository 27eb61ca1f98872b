"""The operator library: templates, Python functions that return kernels or programs, in the language.

matmul         products of matrices, with transposed or packed operands, bias and activation
tiles_matmul   products on GPUs: blocks of warps, operands in shared memory
padded_matmul  those of operands that lie badly, by way of copies that lie well
split_matmul   those of few blocks, whose sums are taken in parts
vector_matmul  those of a few vectors and a matrix, on GPUs
few_rows       those of a vector, or a few rows, and a matrix, on processors
batches        many products, as NumPy broadcasts them
products       products of 8- and 16-bit numbers, by the machine's matrix instructions
convolution    of images, with stride, padding, dilation and groups
rows           softmax, log_softmax, layer_norm, rms_norm over the last axis
reductions     sum, mean, max, min, prod along any axes
elementwise    an expression of several inputs, with broadcasting
transpose      axes in any other order
attention      with an online softmax, masks, and heads that share keys; for many queries and for few

The other files are parts of these, by their names, or shared: owners (who has what of a block), whole_rows (rows
that stay in registers), padding (rows made longer), squares (turned in registers).
"""
