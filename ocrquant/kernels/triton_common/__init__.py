"""What the Triton kernels share: casts, the forms of an operand, launches. Imports no Triton by itself."""
