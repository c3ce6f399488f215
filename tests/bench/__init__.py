"""``make bench``: what nvdp costs and how quick it is, measured on this machine beside floors of the same run."""
