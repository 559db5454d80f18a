"""Models that OpenVINO GenAI runs on the CPU."""
