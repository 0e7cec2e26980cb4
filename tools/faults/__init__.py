"""Faults on purpose: roles, actions on processes, seeded schedules, the load meanwhile, and the verdict on its records."""
