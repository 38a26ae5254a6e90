"""Retrieval: stores behind two seams, and the pipeline that searches them."""
