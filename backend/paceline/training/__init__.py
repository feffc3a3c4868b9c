"""Making a draft for a target."""
