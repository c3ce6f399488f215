"""nvdp with real parts of Kubernetes, whose programs lie where NVDP_KUBERNETES says: see ``.ci/kubernetes``."""
