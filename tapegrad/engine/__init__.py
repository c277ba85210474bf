"""Transforms of tapes; names no op and no Tensor."""
