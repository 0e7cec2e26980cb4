"""Consumer groups for their operator: `ottla group`."""
