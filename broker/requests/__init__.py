"""What the APIs share: the services they call, work in steps, waiting until a change is seen."""
