"""The operator library: templates, Python functions that return kernels or programs, in the language.

matmul       products of matrices, with transposed or packed operands, bias and activation
tiles_matmul products on GPUs: blocks of warps, operands in shared memory
padded_matmul  those of rows of odd lengths, by way of copies that lie well
few_rows     those of a vector, or a few rows, and a matrix
batches      many products, as NumPy broadcasts them
products     products of 8- and 16-bit numbers, by the machine's matrix instructions
rows         softmax, log_softmax, layer_norm, rms_norm over the last axis
reductions   sum, mean, max, min, prod along any axes
elementwise  an expression of several inputs, with broadcasting
transpose    axes in any other order
attention    with an online softmax, masks, and heads that share keys; for many queries and for few
squares      turned in registers, for transpose and attention
"""
