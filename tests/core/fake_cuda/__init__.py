"""A CUDA device without contents, for machines that have none: shapes, number formats, strides, devices, no kernel."""
