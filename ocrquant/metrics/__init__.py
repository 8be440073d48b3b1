"""Pure scores that sensitivity and evaluation share: text, divergence of logits, bootstrap intervals.

Knows strings, logits and arrays; knows no page, model or file.
"""
