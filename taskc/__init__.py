"""taskc: a tensor-program compiler whose schedules are task mappings."""

__version__ = "0.1.0"
