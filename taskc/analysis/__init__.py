"""Questions about a program that several passes or backends ask, each answered in one place."""
