"""The controller's reaction to each kind of event; each has four steps: decide, persist, apply, announce."""
