"""The commands. Each is a few lines over the layers before; nothing imports this one."""
