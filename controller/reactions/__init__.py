"""What the controller does for each kind of event; each is: decide, persist, apply, announce."""
