"""The compiler's own forms: sizes, index maps, graphs, iteration spaces, plans, kernels."""
