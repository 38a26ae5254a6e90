"""Contracts: every word a language model reads, and the records that cross a seam.

`vocabulary` and `records` import no DSPy, so that the command line starts fast.
"""
