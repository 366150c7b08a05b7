"""Triton kernels of the families, one module each; imported where a kernel is launched, never by a run's parent."""
