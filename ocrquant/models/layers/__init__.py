"""Layers that the families share: each is a few ops over buffers that were made beforehand."""
