"""The commands. Each is a few lines over the rooms above; nothing imports this one."""
