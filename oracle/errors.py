"""The one error that a user of lanelock sees."""


class LanelockError(Exception):
    """A refusal: its message is one sentence that names what is wrong and where."""
