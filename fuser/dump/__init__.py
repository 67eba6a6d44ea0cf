"""Show a graph or a plan to a person or a tool: text, JSON, DOT, HTML."""
