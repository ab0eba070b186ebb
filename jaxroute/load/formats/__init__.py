"""Readers of files that other programs write, one module a format."""
