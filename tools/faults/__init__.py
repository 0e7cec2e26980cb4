"""Faults on purpose: roles, actions on processes, seeded schedules, a load during faults, and the verdict on its records."""
