"""Checks of a build before anything is downloaded; each raises a `SettingsError`."""
