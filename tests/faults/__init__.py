"""Fault injection: damages files, disks and processes for real, and counts what is lost."""
