"""Carbon intensity as its publishers give it, one small module a source."""
