"""Symmetric memory of tensors: where things lie in it on every rank, and views of that.

need.py          how much the launches of one shape take
layout.py        where the parts of a communicated tensor lie; pure
plan_tensor.py   one tensor of a plan on a group, and views of it on every rank
part.py          one communicated tensor of an operator's instance
copies.py        a strided copy as one- and two-dimensional copies of bytes
symmetric.py     a tensor of every rank with signals, for kernels that users write
"""
