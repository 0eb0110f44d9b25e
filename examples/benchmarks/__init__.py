"""Measurements that the README quotes; each is a module to run."""
