"""PyTorch's own samples of its operators, run through fuser and compared with eager and float64."""
