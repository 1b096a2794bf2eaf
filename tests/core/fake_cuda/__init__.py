"""A fake CUDA device for machines without one: tensors have shapes, dtypes, strides and devices, but no data."""
