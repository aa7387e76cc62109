"""Integrations: private training inside the trainers that people have. Each module needs the library that it is named for."""
