# nvdp: everything a fresh machine needs is Python 3.11+ (with venv), make and git.
PY := .venv/bin/python

.PHONY: setup proto
setup:
	@true
