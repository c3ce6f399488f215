"""The edge to the API server of Kubernetes. Nothing of it is imported unless a feature of the cluster is on."""
