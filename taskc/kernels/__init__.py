"""Templates: Python functions that return kernels or programs, written in the language.

matmul         GEMM: products of matrices, with transposed or packed operands and an epilogue; batches of products;
               products of 8- and 16-bit numbers
convolution    of images, with stride, padding, dilation and groups
pooling        of images: the largest numbers, sums or averages of windows, or of whole images
rows           softmax, log_softmax, layer_norm, rms_norm over an axis; group_norm, instance_norm
losses         mean squared and absolute errors, cross-entropies, and logsumexp
reductions     sum, mean, max, min, prod along any axes; argmax, argmin
quantized      products with weights of few bits, in groups that have a scale each
scans          cumsum and cumprod along an axis
transpose      axes in any other order
attention      with an online softmax, masks, and heads that share keys; for many queries and for few
sampling       images sampled between their elements, at places that are data
indices        elements written at places that are data; the places of the largest, and of those that aren't 0
trees          the leaves that rows reach in decision trees
windows        over images, and over neighbouring channels
determinants   of matrices, and their inverses
linear_attention  with a state of each head that decays, in place of scores

Each is a problem, plans for it, and algorithms: a file, or a folder of problem.py, plan.py and the rest. operator.py
joins them: it makes the problem from a call's options, chooses a plan, and builds by the algorithm of the plan's class.
taskc.tune chooses among the plans, and machine_facts.py has what their costs ask of a machine. Shared by several:

owners         who has what of a block
epilogue       what is made of a sum
images         where their numbers lie, and tiles of lines
padding        matrices whose rows are made longer
signatures     of templates that take the same options, the types of sums and results, extents known only at a call
"""
