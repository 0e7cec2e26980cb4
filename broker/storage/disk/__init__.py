"""Every call of the disk, and what its errors mean."""
