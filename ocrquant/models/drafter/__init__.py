"""Drafters as the runtime runs them: paged, batched, in the ops of ``ocrquant.kernels``.

Their definition for training, and the reference of what runs here, is ``ocrquant.drafter.model``.
"""
