"""The controller's reactions, one for each kind of event. Each has four steps: decide, persist, apply, announce."""
