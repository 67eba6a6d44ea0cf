"""From regions to template contexts, one module per kind of kernel."""
