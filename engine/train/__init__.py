"""Training drafters for a target model: text that the target writes, modules that learn to guess it, files to load.

Plain torch modules that recompute whole sequences; what drafts inside a decode step is in `engine/drafters/`. Both
agree through the files that `engine/train/files.py` writes.
"""
