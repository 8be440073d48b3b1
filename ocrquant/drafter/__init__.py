"""Drafters: small decoders that guess a block of tokens from what the target has computed already."""
