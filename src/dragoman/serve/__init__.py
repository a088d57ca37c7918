"""Web pages: what a run looks like while it goes on."""
