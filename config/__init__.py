"""Run and node settings: schema, loader, and the names that machines share."""
