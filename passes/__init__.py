"""Decide what is fused: rewrites, analyses, the cost model and the partitioner.

In: a graph. Out: a plan, with the reason for every fusion made and every fusion refused.
This folder is imported as `fuser.passes`.
"""
