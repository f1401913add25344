"""Modules that every room may use: settings, documents, errors, events, arrays, text, files. Imports no other room."""
