"""Write kernels: each region of a plan becomes the source text of a Triton kernel.

In: a plan and a device. Out: kernel specifications, rendered from the files in `templates/`.
This folder is imported as `fuser.codegen`.
"""
