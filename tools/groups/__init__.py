"""Consumer groups as their operator sees them: `ottla group`."""
