"""Conversations become unique tokenized samples and jobs in Redis."""
