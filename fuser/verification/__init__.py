"""Checking fused code against the unfused graph."""
