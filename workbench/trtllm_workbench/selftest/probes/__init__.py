"""Programs that run in other Pythons than this project's, and import only what they look at."""
