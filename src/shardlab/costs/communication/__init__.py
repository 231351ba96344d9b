"""What collectives send and how long they take, on one axis of a mesh or on several."""
