"""What a project declares to use the wheels."""
