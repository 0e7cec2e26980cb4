"""The pages of a replay and of a comparison, and what CI reads: HTML, JUnit XML and Markdown, from the JSON files beside them."""
