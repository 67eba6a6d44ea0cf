"""What aten calls become before the graph is imported, one module for each kind of call."""
