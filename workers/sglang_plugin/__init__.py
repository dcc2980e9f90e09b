"""The patch: hooks by which a released SGLang writes whole, checked dumps to the spool (INVENTORY.md lists them)."""
