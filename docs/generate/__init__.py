"""From the repository to the sources of the site: every sentence has one place, and pages include it from there."""
