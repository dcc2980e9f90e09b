"""Dumps become verified shards in an object store, and manifests their ledger."""
