"""The runtime: a batched engine that serves a checkpoint.

Schedules requests, keeps their pages and state slots, and runs a model of ``ocrquant.models`` step by step.
Sees a checkpoint and nothing else: no recipe, no artefact of a calibration.
"""
