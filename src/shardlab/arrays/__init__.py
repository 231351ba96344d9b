"""Arrays on devices: emulated devices, and which of them stores what."""
