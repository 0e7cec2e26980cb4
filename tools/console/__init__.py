"""`ottla console`: one page that shows a cluster as it lives, and breaks it if it may."""
