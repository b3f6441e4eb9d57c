class RayActorError(Exception):
    """A node is lost."""
