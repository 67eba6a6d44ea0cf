"""What several test folders share: builders of graphs, plans and kernels."""
