"""The edge to Prometheus: what is counted, and how a scrape sees it."""
