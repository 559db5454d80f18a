"""Engines that run inside Triton as Python-based backends; they import no room above."""
