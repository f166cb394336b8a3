"""Does the default harm any network? Many small jobs of a user's own, all with default settings."""
