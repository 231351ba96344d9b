"""The networks that chapters and planner train."""
