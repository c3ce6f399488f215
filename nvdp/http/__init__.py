"""The edge to whoever asks over HTTP: probes and metrics on one port."""
