"""Generated from api/*.proto by .ci/generate_proto.py; do not edit. Calls and services: nvdp.kubelet.protocol."""
