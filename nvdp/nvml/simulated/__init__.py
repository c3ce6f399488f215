"""A simulated NVML: a machine that a node file describes, behind the functions of libnvidia-ml."""
