"""Run folders: what a training leaves on disk, its history, and how a run is loaded."""
