"""The operator library, in the DSL: templates that return kernels and programs."""
