"""The page itself: HTML, style and script, served as they are."""
