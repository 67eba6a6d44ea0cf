"""From PyTorch to the graph: what the model computes, as operations of fuser's own table."""
