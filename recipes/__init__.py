"""Packaged recipes: every .toml file in this folder is one."""
